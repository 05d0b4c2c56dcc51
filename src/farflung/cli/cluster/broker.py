"""``farflung broker``: start a broker."""

from __future__ import annotations

import shlex
import signal
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.cluster.broker_records import end_broker, given_back, take_lead, wait_for_end
from farflung.cli.cluster.observation import observed_broker
from farflung.cli.cluster.service_log import writes_to_a_service_log
from farflung.cli.cluster.timed_log import timed_log
from farflung.cli.home import broker_folder, drop_ticket, keep_ticket, stored_ticket
from farflung.cli.options import HomeOption, MetricsOption, VerboseOption, host, quantity
from farflung.signal_event import SignalEvent
from farflung.units import Bytes, Seconds

if TYPE_CHECKING:
    from farflung.broker.process import Broker
    from farflung.broker.replication.leadership import Leadership
    from farflung.security import Ticket

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(broker)


def broker(
    listen: Annotated[str, typer.Option(help="Address to listen on (HOST:PORT).")] = "0.0.0.0:7070",
    advertise: Annotated[str | None, typer.Option(help="Host name or IP address in the tickets (default: detected).")] = None,
    folder: HomeOption = None,
    valid: Annotated[str, typer.Option(help="Validity of the printed tickets.")] = "24 h",
    run_limit: Annotated[str, typer.Option(help="Limit of the disk space of one run.")] = "256 GB",
    ticket_limit: Annotated[str, typer.Option(help="Limit of the disk space of all runs that share a ticket.")] = "1 TB",
    queue_limit: Annotated[int, typer.Option(min=1, help="Limit of the runs of one ticket that wait for workers.")] = 100,
    web: Annotated[
        str | None,
        typer.Option(help="Address of the dashboard, HOST:PORT (default: 127.0.0.1:7080 if farflung[web] is installed)."),
    ] = None,
    no_web: Annotated[bool, typer.Option("--no-web", help="Start no dashboard.")] = False,
    mirror: Annotated[str | None, typer.Option(help="Copy checkpoints to an object store, e.g. s3://bucket/folder.")] = None,
    metrics: MetricsOption = None,
    records: Annotated[
        str | None,
        typer.Option(
            envvar="FARFLUNG_RECORDS",
            help="Share all records with other brokers: the URL of a database, or @FILE with the URL.",
        ),
    ] = None,
    standby: Annotated[bool, typer.Option("--standby", help="With --records: take over when the leader is gone.")] = False,
    trackers: Annotated[
        str | None, typer.Option(help="Experiment trackers that submitters may use with your accounts, e.g. wandb,mlflow.")
    ] = None,
    no_tickets: Annotated[bool, typer.Option("--no-tickets", help="Print no tickets and no sign-in link.")] = False,
    service: Annotated[bool, typer.Option("--service", help="Write a systemd unit for this command, and exit.")] = False,
    user: Annotated[bool, typer.Option("--user", help="With --service: a unit of your user, without root.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Start a broker. It prints the tickets for workers and for submitters."""
    from farflung.api.planning import judge
    from farflung.broker.process import Broker
    from farflung.broker.quotas import Quotas
    from farflung.broker.records.run_folders import StorageSettings
    from farflung.cli.cluster.broker_dashboard import open_dashboard
    from farflung.cli.cluster.broker_service import broker_service
    from farflung.tracking import tracker_names
    from farflung.transports.addresses import congestion_control

    validity = quantity(Seconds, valid, "--valid")
    if service:
        given = {"--listen": listen, "--advertise": advertise, "--valid": valid, "--mirror": mirror, "--trackers": trackers}
        given |= {"--run-limit": run_limit, "--ticket-limit": ticket_limit, "--queue-limit": str(queue_limit)}
        given |= {"--records": records, **{flag: "" for flag, on in (("--standby", standby), ("--no-web", no_web)) if on}}
        given |= {"--metrics": metrics, "--web": web}
        typer.echo("\n".join(broker_service(given, broker_folder(folder), user=user)))
        return
    _limit_process()
    over = SignalEvent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    place, say = broker_folder(folder), timed_log(verbose=verbose)
    named = host(advertise, "--advertise")
    storage = StorageSettings(
        run=quantity(Bytes, run_limit, "--run-limit"),
        ticket=quantity(Bytes, ticket_limit, "--ticket-limit"),
        mirror=mirror or "",
        quotas=Quotas(queued=queue_limit),
        trackers=tracker_names(trackers),
    )
    leadership = take_lead(records, place, (listen, named), storage.mirror, over, say if standby else None)
    storage = replace(storage, leadership=leadership)
    with given_back(leadership):
        if over.is_set():
            raise typer.Exit  # the signal came while it stood by, or just after it took the lead
        served = Broker(place, listen=listen, advertise=named, say=say, judge=judge, storage=storage)
    console = _Console(served=served, place=place, folder=folder, validity=validity, secret=no_tickets, leadership=leadership)
    dashboard = None
    observed = ExitStack()
    try:
        if leadership is not None:
            leadership.start()
        observed.enter_context(observed_broker(served, metrics, typer.echo))
        dashboard = None if no_web else open_dashboard(place, web, say)  # before tickets are printed: its port may be taken
        typer.echo(f"broker at {served.address} (members: port {served.member_port}), tickets valid for {valid}")
        if verbose and (congestion := congestion_control()):
            typer.echo(congestion)
        console.invite()
        typer.echo(f"\nTo submit a job from this machine:\n  farflung submit JOB.toml{console.here}")
        if dashboard is not None:
            typer.echo(dashboard.invitation(secret=no_tickets))
        typer.echo("\nPress Ctrl-C to stop the broker.")
        wait_for_end(over, served, console.invite)
    finally:
        typer.echo("broker: closing")
        if dashboard is not None:
            dashboard.close()
        console.close()
        observed.close()
        end_broker(served, leadership)


@dataclass(slots=True, kw_only=True)
class _Console:
    """Prints tickets, and stores the owner's ticket for commands on this machine. ``secret``: tickets are not printed."""

    served: Broker
    place: Path
    folder: Path | None
    validity: Seconds
    secret: bool
    leadership: Leadership | None
    _own: Ticket | None = None

    @property
    def here(self) -> str:
        """The option that names the folder."""
        return "" if self.folder is None else f" --home {shlex.quote(str(self.place))}"

    def invite(self) -> None:
        """Print how others join, with fresh tickets."""
        before = stored_ticket(self.place)  # also that of a broker that was killed
        self._own = self.served.ticket("owner", self.validity)
        keep_ticket(self._own, self.place)
        self._forget(before)
        for line in _invitations(self.served, self.validity, self.here, secret=self.secret):
            typer.echo(line)
        if self.leadership is not None:
            self.leadership.flush()

    def close(self) -> None:
        """Remove the stored ticket."""
        if self._own is not None:
            drop_ticket(self._own, self.place)
            self._forget(self._own)

    def _forget(self, ticket: Ticket | None) -> None:
        """Remove a ticket that was stored and never shown from the list of tickets.

        One that names several brokers stays: commands that run now join the next leader with it.
        """
        if ticket is not None and len(ticket.addresses) == 1:
            self.served.tickets.forget(ticket.ticket_id)


def _invitations(served: Broker, validity: Seconds, here: str, *, secret: bool) -> list[str]:
    """Return how others join, with fresh tickets; without tickets if they are ``secret`` or the output is a service's log."""
    if secret or writes_to_a_service_log():
        issue = f"  farflung ticket issue{here}\n  farflung ticket issue --scope submit{here}"
        reason = "as --no-tickets was given" if secret else "since this is the log of a service"
        return [f"\nThe tickets are not shown, {reason}. For a ticket, run:\n{issue}"]
    worker, submitter = served.ticket("join", validity), served.ticket("submit", validity)
    return [
        f"\nTo add a worker, run on its machine:\n  farflung join {worker}",
        f"\nTo submit a job from another machine:\n  farflung submit JOB.toml --ticket {submitter}",
    ]


def _limit_process() -> None:
    """Few arenas of the heap, and as many descriptors as the system allows. Call it before threads start."""
    from farflung.transports.arenas import limit_arenas
    from farflung.transports.descriptors import raise_descriptor_limit

    limit_arenas()
    raise_descriptor_limit()
