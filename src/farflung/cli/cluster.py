"""``farflung broker``, ``join``, ``ticket``: the machines."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from farflung.api.activity import Activity
from farflung.cli.broker_service import broker_service
from farflung.cli.home import (
    broker_folder,
    default_name,
    drop_ticket,
    keep_ticket,
    known_broker,
    members_folder,
    own_key,
    worker_log,
)
from farflung.cli.options import HomeOption, VerboseOption, host, quantity, readable_folder
from farflung.errors import FarflungError, InputError
from farflung.telemetry.log_file import LogWriter
from farflung.telemetry.log_line import without_details
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

if TYPE_CHECKING:
    from farflung.worker.process import WorkerOptions

__all__ = ["register"]

#: The variable of the environment that holds a ticket to join.
TICKET = "FARFLUNG_TICKET"

tickets = typer.Typer(no_args_is_help=True, help="Issue, list and revoke tickets, on the machine of the broker.")


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(broker)
    app.command()(join)
    app.add_typer(tickets, name="ticket")


def broker(
    listen: Annotated[str, typer.Option(help="Address to listen on (HOST:PORT).")] = "0.0.0.0:7070",
    advertise: Annotated[str | None, typer.Option(help="Host name or IP address in the tickets (default: detected).")] = None,
    folder: HomeOption = None,
    valid: Annotated[str, typer.Option(help="Validity of the printed tickets.")] = "24 h",
    run_limit: Annotated[str, typer.Option(help="Limit of the disk space of one run.")] = "256 GB",
    ticket_limit: Annotated[str, typer.Option(help="Limit of the disk space of all runs that share a ticket.")] = "1 TB",
    mirror: Annotated[str | None, typer.Option(help="Copy checkpoints to an object store, e.g. s3://bucket/folder.")] = None,
    service: Annotated[bool, typer.Option("--service", help="Write a systemd unit for this command, and exit.")] = False,
    user: Annotated[bool, typer.Option("--user", help="With --service: a unit of your user, without root.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Start a broker. It prints the tickets for workers and for submitters."""
    from farflung.api.planning import judge
    from farflung.broker.process import Broker
    from farflung.broker.records.run_folders import StorageSettings
    from farflung.transports.addresses import congestion_control

    validity = quantity(Seconds, valid, "--valid")
    if service:
        given = {"--listen": listen, "--advertise": advertise, "--valid": valid, "--mirror": mirror}
        given |= {"--run-limit": run_limit, "--ticket-limit": ticket_limit}
        for line in broker_service(given, broker_folder(folder), user=user):
            typer.echo(line)
        return
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    place, say = broker_folder(folder), _log(verbose=verbose)
    storage = StorageSettings(
        run=quantity(Bytes, run_limit, "--run-limit"),
        ticket=quantity(Bytes, ticket_limit, "--ticket-limit"),
        mirror=mirror or "",
    )
    served = Broker(place, listen=listen, advertise=host(advertise, "--advertise"), say=say, judge=judge, storage=storage)
    own = None
    try:
        submit = served.ticket("submit", validity)
        own = served.ticket("owner", validity)
        keep_ticket(own, place)
        typer.echo(f"broker at {served.address} (members: port {served.member_port}), tickets valid for {valid}")
        if verbose and (congestion := congestion_control()):
            typer.echo(congestion)
        typer.echo(f"\nTo add a worker, run on its machine:\n  farflung join {served.ticket('join', validity)}")
        typer.echo(f"\nTo submit a job from another machine:\n  farflung submit JOB.toml --ticket {submit}")
        here = "" if folder is None else f" --home {folder}"
        typer.echo(f"\nTo submit a job from this machine:\n  farflung submit JOB.toml{here}\n\nPress Ctrl-C to stop the broker.")
        over.wait()
    finally:
        typer.echo("broker: closing")
        if own is not None:
            drop_ticket(own, place)
        served.close()


def join(
    ticket: Annotated[
        str, typer.Argument(envvar=TICKET, help="Ticket that the broker printed, or a file that contains it (also @FILE).")
    ],
    name: Annotated[str | None, typer.Option(help="Name of this worker (default: from the host name).")] = None,
    device: Annotated[str, typer.Option(help="auto (an accelerator, if there is one), cpu, cuda, cuda:N, mps or xpu.")] = "auto",
    memory: Annotated[str | None, typer.Option(help='Memory for training, e.g. "8 GB" (default: 80 % of what is free).')] = None,
    peak: Annotated[str | None, typer.Option(help='Peak speed, e.g. "20 TFLOP/s" (default: measured).')] = None,
    listen: Annotated[str, typer.Option(help="Address to listen on for other workers.")] = "0.0.0.0:0",
    advertise: Annotated[str | None, typer.Option(help="Host name or IP address for other workers (default: detected).")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder that jobs may read; relative data paths start here.")] = None,
    retry: Annotated[str, typer.Option(help="How long to retry when the broker is unreachable.")] = "10 min",
    any_path: Annotated[bool, typer.Option("--any-path", help="Let jobs read every file that you can read.")] = False,
    hours: Annotated[str | None, typer.Option(help='Working hours, e.g. "22:00-07:00" (local time).')] = None,
    bandwidth: Annotated[str | None, typer.Option(help='Limit of the upload rate, e.g. "20 Mbit/s".')] = None,
    service: Annotated[bool, typer.Option("--service", help="Write a systemd unit for this command, and exit.")] = False,
    user: Annotated[bool, typer.Option("--user", help="With --service: a unit of your user, without root.")] = False,
    no_listen: Annotated[bool, typer.Option("--no-listen", help="Accept no connections from other workers.")] = False,
    unreliable: Annotated[
        bool,
        typer.Option(
            "--unreliable", help="This machine may leave at any time: jobs with plan.helpers give it no stage, it only helps."
        ),
    ] = False,
    no_relay: Annotated[bool, typer.Option("--no-relay", help="Do not relay traffic between other workers.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Join a broker as a worker. Ctrl-C leaves after the current step, a second Ctrl-C at once."""
    from farflung.security import Ticket
    from farflung.security.files import read_private
    from farflung.worker import membership
    from farflung.worker.owner_limits import WishesFile
    from farflung.worker.process import WorkerOptions
    from farflung.worker.reconnect import Service

    kept = _ticket_file(ticket)
    invitation = Ticket.parse(ticket if kept is None else read_private(kept).decode("ascii", "replace").strip())
    options = WorkerOptions(
        device=device,
        memory=None if memory is None else float(quantity(Bytes, memory, "--memory")),
        peak=None if peak is None else float(quantity(FlopsPerSecond, peak, "--peak")),
        listen="" if no_listen else listen,
        advertise=host(advertise, "--advertise"),
        data=Path.cwd() if data is None else readable_folder(data, "--data"),
        any_path=any_path,
        relay=not no_relay,
        reliable=not unreliable,
    )
    own = name or (default_name("worker").rpartition("-")[0] if service else default_name("worker"))
    patience, key = quantity(Seconds, retry, "--retry"), own_key()
    if service:
        given = {"--peak": peak, "--hours": hours, "--bandwidth": bandwidth, "--memory": memory, "--retry": retry}
        _write_service(own, str(invitation), options, given, user=user)
        return
    wishes = WishesFile(members_folder(), own)
    rate = None if bandwidth is None else float(quantity(BytesPerSecond, bandwidth, "--bandwidth"))
    held = wishes.begin({"hours": hours, "memory": options.memory, "bandwidth": rate})
    if str(held) != "no limits":
        typer.echo(f"{own}: {held} (farflung limit, farflung resume)")
    certificate = members_folder() / f"{own}.certificate"
    writer, shown = LogWriter(), _log(verbose=verbose)

    def say(line: str) -> None:
        writer.write(worker_log(own), line)
        shown(line)

    activity = Activity(Console(), say)
    serving = Service(
        lambda: membership.join(invitation, name=own, role="worker", key=key, kept=certificate),
        options,
        say,
        wishes,
        activity.phase,
    )

    def leave(*_: object) -> None:
        # the session's locks may be held by the very thread that the signal interrupts
        threading.Thread(target=serving.part, name="leave", daemon=True).start()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    threading.Thread(target=serving.watch, name="wishes", daemon=True).start()
    try:
        with activity:
            serving.run(patience)
    except FarflungError as error:
        writer.write(worker_log(own), f"ended: {error}")
        raise
    finally:
        writer.close()
        wishes.end()
    typer.echo(f"{own}: left")


def _ticket_file(text: str) -> Path | None:
    """The file that ``text`` says to hold the ticket: ``@FILE``, or a path that is there (None: it is the ticket itself).

    Raises:
        InputError: there is no such file.
    """
    if text.startswith("@"):
        if not (path := Path(text[1:]).expanduser()).is_file():
            raise InputError(f"there is no file {text[1:]!r} that could hold a ticket: check the path after @")
        return path
    return Path(text) if not text.startswith("farflung") and Path(text).is_file() else None


def _write_service(own: str, ticket: str, options: WorkerOptions, given: Mapping[str, str | None], *, user: bool) -> None:
    """Write the unit of the worker ``own``, and say how it is started; ``given``: options as they were written."""
    from farflung.cli.units import keep_join_ticket, unit_text, write_unit
    from farflung.security.certificates import check_name

    check_name(own)
    words = [str(keep_join_ticket(own, ticket)), "--name", own, "--device", options.device]
    words += ["--listen", options.listen] if options.listen else ["--no-listen"]
    words += ["--data", str(options.data.resolve())]
    for option, value in {**given, "--advertise": options.advertise}.items():
        words += [] if value is None else [option, value]
    words += ["--any-path"] if options.any_path else []
    words += [] if options.relay else ["--no-relay"]
    words += [] if options.reliable else ["--unreliable"]
    for line in write_unit(own, unit_text(own, words, options.data.resolve(), user=user), user=user):
        typer.echo(line)


def _log(*, verbose: bool) -> Callable[[str], None]:
    """Return what prints a line of the log with the time of day."""

    def write(line: str) -> None:
        typer.echo(f"{time.strftime('%H:%M:%S')} {line}")

    return write if verbose else without_details(write)


@tickets.command("issue")
def issue(
    address: Annotated[
        str | None, typer.Option(help="Address of the broker, HOST:PORT (default: as in its own tickets).")
    ] = None,
    scope: Annotated[str, typer.Option(help="join, submit, or owner (can stop and export every run).")] = "join",
    valid: Annotated[str, typer.Option(help="Validity of the ticket.")] = "24 h",
    folder: HomeOption = None,
) -> None:
    """Print a new ticket."""
    from farflung.security import CertificateAuthority, TicketBook, certificate_fingerprint

    if scope not in ("join", "submit", "owner"):
        raise InputError(f"unknown scope {scope!r}: known are join, submit, owner")
    validity, place = quantity(Seconds, valid, "--valid"), known_broker(folder)
    credentials = CertificateAuthority.open(place / "authority", time.time()).server_credentials(time.time())
    book = TicketBook(place / "tickets.sqlite")
    fingerprint = certificate_fingerprint(credentials.certificate)
    where = address or _known_address(place)
    typer.echo(book.issue(scope, addresses=[where], fingerprint=fingerprint, now=time.time(), validity=validity))


def _known_address(place: Path) -> str:
    """The address that the broker of this folder was started with.

    Raises:
        InputError: it has never been started.
    """
    from farflung.broker.process import ADDRESS

    try:
        return (place / ADDRESS).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"{place} does not say where its broker is reached: start the broker once, or pass --address host:port"
        ) from None


@tickets.command("list")
def list_tickets(
    folder: HomeOption = None,
) -> None:
    """List all tickets with their state."""
    from farflung.security import TicketBook
    from farflung.security.tickets import describe_time

    for record in TicketBook(known_broker(folder) / "tickets.sqlite").list():
        state = "revoked" if record.revoked else "expired" if record.expires <= time.time() else "valid"
        typer.echo(f"{record.ticket_id}  {record.scope:6}  {state:7}  until {describe_time(record.expires)}")


@tickets.command("revoke")
def revoke(
    ticket_id: Annotated[str, typer.Argument(help="Id of the ticket, from `farflung ticket list`.")],
    folder: HomeOption = None,
) -> None:
    """Revoke a ticket. Members that have joined with it stay."""
    from farflung.security import TicketBook

    TicketBook(known_broker(folder) / "tickets.sqlite").revoke(ticket_id, time.time())
    typer.echo(f"{ticket_id}: revoked")


@tickets.command("free")
def free(
    name: Annotated[str, typer.Argument(help="Name of a worker or client.")],
    folder: HomeOption = None,
) -> None:
    """Release a name whose owner has lost the key, so that another key can use it."""
    from farflung.security import NameBook

    NameBook(known_broker(folder) / "names.sqlite").free(name)
    typer.echo(f"{name}: released; the next member that joins with this name owns it")
