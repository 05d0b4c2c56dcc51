"""``farflung broker --records URL [--standby]``: brokers that share a database."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from farflung.cli.options import read_text
from farflung.errors import InputError

if TYPE_CHECKING:
    from farflung.broker.process import Broker
    from farflung.broker.replication.leadership import Leadership

__all__ = ["end_broker", "take_lead", "wait_for_end"]

#: Seconds between two looks for new standbys.
_LOOK = 1.0


def take_lead(
    records: str, home: Path, where: tuple[str, str | None], over: threading.Event, say: Callable[[str], None] | None
) -> Leadership | None:
    """Return the leadership of the broker with the folder ``home``; None if ``over`` is set while it stands by.

    ``where``: the address to listen at, and the host to advertise. ``say`` receives lines of a standby (None: it leads now).

    Raises:
        InputError, SecurityError, ConnectionLost: as ``Leadership``.
    """
    from farflung.broker.process import advertised, own_folder
    from farflung.broker.replication.database import RecordsDatabase
    from farflung.broker.replication.leadership import Leadership

    if where[0].endswith(":0"):
        raise InputError(f"--listen {where[0]}: brokers that share --records need a fixed port, such as 0.0.0.0:7070")
    address = advertised(*where)
    with own_folder(home):
        leadership = Leadership(home, RecordsDatabase(_url(records)), _stop)
        if say is None:
            leadership.lead(address)
        elif not leadership.wait(address, over, say):
            return None
    return leadership


def wait_for_end(over: threading.Event, served: Broker, invite: Callable[[], None]) -> None:
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
