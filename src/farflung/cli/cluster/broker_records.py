"""Records of a broker: brokers that share them in a database, ``farflung backup`` and ``farflung restore``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from farflung.cli.home import broker_folder, known_broker
from farflung.cli.options import HomeOption, JsonOption, answer, read_text, to_write
from farflung.errors import InputError
from farflung.signal_event import SignalEvent
from farflung.telemetry.activity import Activity
from farflung.units import counted

if TYPE_CHECKING:
    from farflung.broker.process import Broker
    from farflung.broker.records.backup import BackupSummary
    from farflung.broker.replication.leadership import Leadership

__all__ = ["end_broker", "given_back", "register", "take_lead", "wait_for_end"]

#: Seconds between two looks for new standbys.
_LOOK = 1.0


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(backup)
    app.command()(restore)


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    folder: HomeOption = None,
    no_checkpoints: Annotated[bool, typer.Option("--no-checkpoints", help="Leave out checkpoints.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a broker's keys, tickets, runs and checkpoints to a file. The broker may run meanwhile."""
    from farflung.broker.records.backup import back_up

    place = known_broker(folder)
    to_write(file)
    with Activity() as activity:
        activity.phase(f"writing {file}", silent=True)
        made = back_up(place, file, checkpoints=not no_checkpoints)
    _tell(f"{file}: {_described(made)}; whoever reads this file controls the cluster", file, made, as_json=as_json)


def restore(
    file: Annotated[Path, typer.Argument(help="A file of `farflung backup`.")],
    folder: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a broker's folder from a backup."""
    from farflung.broker.records import backup as backups

    place = broker_folder(folder)
    with Activity() as activity:
        activity.phase(f"reading {file}", silent=True)
        made = backups.restore(file, place)
    here = "" if folder is None else f" --home {shlex.quote(str(place))}"
    _tell(f"{place}: {_described(made)}; start it with: farflung broker{here}", place, made, as_json=as_json)


def _described(made: BackupSummary) -> str:
    return f"{counted(made.files, 'file')} of {counted(made.runs, 'run')}, {made.size}"


def _tell(text: str, place: Path, made: BackupSummary, *, as_json: bool) -> None:
    answer(text, {"path": str(place), **asdict(made), "size": float(made.size)}, as_json=as_json)


def take_lead(
    records: str | None,
    home: Path,
    where: tuple[str, str | None],
    mirror: str,
    over: SignalEvent,
    say: Callable[[str], None] | None,
) -> Leadership | None:
    """Return the leadership of the broker with the folder ``home``.

    None: there are no ``records``, or ``over`` was set while it stood by.

    ``where``: the address to listen at, and the host to advertise. ``say`` receives lines of a standby (None: it leads now).
    ``mirror``: the URL for checkpoints (empty: none). Whatever would prevent the broker from leading is found before it waits.

    Raises:
        InputError, SecurityError, ConnectionLost: as ``Leadership``, or it could not listen or use the mirror.
    """
    from farflung.broker.process import advertised, own_folder
    from farflung.broker.replication.database import RecordsDatabase
    from farflung.broker.replication.leadership import Leadership
    from farflung.checkpoint import ObjectCheckpoints
    from farflung.transports.tcp.sockets import open_server

    if records is None:
        if say is not None:
            raise InputError("--standby needs --records: the database of the broker that leads")
        return None
    if where[0].endswith(":0"):
        raise InputError(f"--listen {where[0]}: brokers that share --records need a fixed port, such as 0.0.0.0:7070")
    address = advertised(*where)
    if mirror:
        ObjectCheckpoints(mirror)
    with own_folder(home):
        open_server(where[0]).close()
        leadership = Leadership(home, RecordsDatabase(_url(records)), _stop, lambda line: typer.echo(f"broker: {line}", err=True))
        if say is None:
            leadership.lead(address)
        elif not leadership.wait(address, over, say):
            return None
    return leadership


@contextmanager
def given_back(leadership: Leadership | None) -> Iterator[None]:
    """Give the lead back if what is done here fails: another broker may be able to lead."""
    try:
        yield
    except BaseException:
        if leadership is not None:
            leadership.give_back()
        raise


def wait_for_end(over: SignalEvent, served: Broker, invite: Callable[[], None]) -> None:
    """Wait until ``over`` is set. Call ``invite`` when other brokers stand by than before: new tickets name them."""
    known = served.addresses
    while not over.wait(_LOOK):
        if served.addresses != known:
            known = served.addresses
            served.store_addresses()
            others = ", ".join(known[1:])
            typer.echo(f"\nstanding by: {others}; tickets from now on name them" if others else "\nno broker stands by any more")
            invite()


def end_broker(served: Broker, leadership: Leadership | None) -> None:
    """Close the broker. If another one stands by, let that one lead: this process ends, and workers continue with the other."""
    if leadership is not None and leadership.standbys:
        leadership.hand_over()
        typer.echo(f"broker: the broker at {leadership.standbys[0]} takes over")
        _exit(0)
    served.close()
    if leadership is not None:
        leadership.close()


def _url(records: str) -> str:
    """Return the URL that ``records`` is, or that the file ``records`` names has: URLs hold passwords."""
    return read_text(Path(records[1:]), "--records").strip() if records.startswith("@") else records


def _stop(cause: str) -> NoReturn:
    """End this process as if it was killed: any goodbye could contradict the broker that leads now."""
    typer.echo(f"broker: {cause}; start it again with --standby", err=True)
    _exit(1)


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
