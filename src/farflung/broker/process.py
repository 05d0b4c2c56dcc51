"""The broker process: makes the parts, connects them, and opens the two ports.

The pure machine of ``protocol.broker`` decides. ``Sessions`` talks to workers, ``RunManager`` carries out the decisions, and the
classes of ``requests`` answer clients.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from farflung.broker.access_control import AccessControl
from farflung.broker.admission import Admission
from farflung.broker.attempts.attempt_deadlines import AttemptDeadlines
from farflung.broker.links.hole_punching import HolePunching
from farflung.broker.links.network import Network
from farflung.broker.links.probes import LinkProbes
from farflung.broker.links.reachability import DIAL_SECONDS, Dial, Reachability
from farflung.broker.links.relays import Relays
from farflung.broker.links.routes import Routes
from farflung.broker.links.table import LinkTable
from farflung.broker.notices import MessageTaker, Notices
from farflung.broker.planning import Judge
from farflung.broker.quotas import TicketQuotas
from farflung.broker.records.broker_log import BrokerLog
from farflung.broker.records.journal import Journal
from farflung.broker.records.mirror import Mirror
from farflung.broker.records.presence_book import PresenceBook
from farflung.broker.records.run_folders import RunFolders, StorageSettings
from farflung.broker.records.standing_book import StandingBook
from farflung.broker.replication.leadership import Leadership
from farflung.broker.requests.dashboard_tunnel import DashboardTunnel
from farflung.broker.requests.link_profile import LinkProfile
from farflung.broker.requests.run_control import RunControl
from farflung.broker.requests.status_queries import StatusQueries
from farflung.broker.requests.submissions import Submissions
from farflung.broker.requests.transfers import Transfers
from farflung.broker.requests.watchers import Watchers
from farflung.broker.restored_runs import RestoredRuns
from farflung.broker.run_manager import RunManager, Stores
from farflung.broker.run_reports import RunReports
from farflung.broker.run_table import RunTable
from farflung.broker.run_trackers import RunTrackers
from farflung.broker.session_table import SessionTable
from farflung.broker.sessions import Sessions
from farflung.broker.worker_reports import WorkerReports
from farflung.checkpoint.store import write_file
from farflung.clock import wall_time
from farflung.errors import FarflungError, InputError
from farflung.messages.schema import Message
from farflung.protocol.events import MemberReset
from farflung.security import Credentials, Ticket
from farflung.security.audit_log import AuditLog
from farflung.security.authority import CertificateAuthority
from farflung.security.files import make_private_folder
from farflung.security.name_book import NameBook
from farflung.security.ticket_book import ADDRESS_FILE, TicketBook
from farflung.transports.addresses import reachable_host
from farflung.transports.punching.observer import AddressObserver
from farflung.transports.rpc.server import RpcHost, RpcServer
from farflung.transports.tcp.sockets import TlsContexts, dial
from farflung.units import Seconds

__all__ = ["Broker", "advertised", "own_folder"]

_DAY = Seconds(86400.0)


def _nobody(line: str) -> None:
    del line


def _safely(say: Callable[[str], None]) -> Callable[[str], None]:
    """``say``, but nothing fails because the line can't be shown (a closed terminal, a broken pipe, a full disk)."""

    def safe(line: str) -> None:
        with suppress(OSError, ValueError):
            say(line)

    return safe


class Broker:
    """Listens at two ports: the door for callers with a ticket, and one (told on joining) for members with certificates."""

    def __init__(
        self,
        home: Path,
        *,
        listen: str = "0.0.0.0:7070",
        advertise: str | None = None,
        say: Callable[[str], None] = _nobody,
        judge: Judge | None = None,
        storage: StorageSettings | None = None,
    ) -> None:
        """``home`` stores keys, tickets and runs. ``advertise``: the host that tickets name (default: that of ``listen``).

        ``say`` receives lines for the operator, from any thread. ``judge`` predicts step times (default: the timed dry-run).

        Raises:
            InputError: the address can't be listened at, or another broker uses ``home``.
            SecurityError: the files of ``home`` are damaged.
        """
        self.home = home
        made = not home.exists()
        with ExitStack() as failed:  # what is undone unless everything succeeds
            if made:
                failed.callback(shutil.rmtree, home, ignore_errors=True)
            opening = failed.enter_context(ExitStack())
            opening.callback(own_folder(home).close)
            log = BrokerLog(home, _safely(say))
            opening.callback(log.close)
            self._open(opening, log, judge, storage or StorageSettings(), (listen, advertise))
            #: What ``close`` calls, the last entry first; each is called even if another one fails.
            self._closing = opening.pop_all()
            failed.pop_all()

    def _open(
        self,
        opening: ExitStack,
        log: BrokerLog,
        judge: Judge | None,
        storage: StorageSettings,
        where: tuple[str, str | None],
    ) -> None:
        """Make the parts in the order in which they need each other. ``close`` runs in the reverse order."""
        say, now = log.say, wall_time()
        # who may join, and what they may use
        authority = CertificateAuthority.open(self.home / "authority", now)
        credentials = authority.server_credentials(now)
        self.tickets = TicketBook(self.home / "tickets.sqlite")
        self.names = NameBook(self.home / "names.sqlite", say)
        access = AccessControl(self.tickets, self.names, AuditLog(self.home, wall_time, say))
        quotas = TicketQuotas(storage.quotas)
        folders = RunFolders(self.home / "runs", self.names.ticket, storage)
        # what the broker knows of members, runs and links; the machine gets what earlier processes knew before anybody joins
        self.sessions = SessionTable(self.names.advance)
        self.runs = RunTable()
        links = LinkTable(self.home / "links.json", say)
        opening.callback(links.close)
        journal = Journal(self.home / "journal.sqlite", say)
        opening.callback(journal.close)
        notices, trackers = self._make_notices(opening, log, storage.trackers)
        self.network = self._make_network(links, _dialer(credentials, say))
        standing = StandingBook(self.home / "names.sqlite", say)
        self.runs.machine.restore_standing(standing.read())
        presence = PresenceBook(self.home / "names.sqlite", say)
        self.runs.machine.restore_gone(presence.read())
        stores = _stores(journal, standing, presence, storage.leadership)
        self._leadership = storage.leadership
        self.manager = RunManager(self.runs, self.network, notices, self.sessions.send, judge, stores)
        # the servers, and the parts that answer calls: none is called before ``_listen``
        self.serving = serving = Sessions(self.sessions, self._make_reports(notices), say, access.unwelcome, access.recheck)
        server, door = self._make_servers(opening, credentials, access, quotas, say)
        access.register(server, serving.remove, self._reset_standing)
        opening.callback(serving.join)
        tunnel = DashboardTunnel(self.home, self.names.ticket)
        opening.callback(tunnel.close)  # its connections end with the server
        opening.callback(server.close)
        opening.callback(serving.close)
        transfers = self._make_transfers(opening, folders, quotas, notices, storage.mirror)
        submissions = Submissions(runs=self.runs, folders=folders, begin=self.manager.submit, quotas=quotas, check=trackers.check)
        self._serve_requests(opening, server, folders, (transfers, submissions, tunnel))
        # runs of earlier processes are in the table before workers come back with their states
        restored = RestoredRuns(
            folder=folders.root,
            add=self.manager.restore,
            handle=self.manager.handle,
            recorder=self.manager.recorder,
            say=say,
            fetch=None if transfers.mirror is None else transfers.mirror.fetch,
        )
        opening.callback(restored.close)
        deadlines = AttemptDeadlines(runs=self.runs, handle=self.manager.handle, warn=say)
        opening.callback(self.manager.close)
        opening.callback(deadlines.close)
        opening.callback(self.network.reachability.close)
        opening.callback(door.close)
        restored.restore(journal.runs)
        trackers.resume()
        server.coroutine("session", serving.serve)
        self._admission = self._make_admission(authority, credentials, access, quotas)
        self._admission.register(door, server)
        self._listen(door, server, *where)
        serving.start()
        deadlines.start()

    def _make_admission(
        self, authority: CertificateAuthority, credentials: Credentials, access: AccessControl, quotas: TicketQuotas
    ) -> Admission:
        return Admission(
            authority=authority,
            credentials=credentials,
            tickets=self.tickets,
            names=self.names,
            sessions=self.sessions,
            access=access,
            quotas=quotas,
            member_port=lambda: self.member_port,
        )

    def _make_servers(
        self,
        opening: ExitStack,
        credentials: Credentials,
        access: AccessControl,
        quotas: TicketQuotas,
        say: Callable[[str], None],
    ) -> tuple[RpcServer, RpcServer]:
        """Return the server for members and the door. Both tell callers their address."""
        observer = AddressObserver(self.network.punching.seen, self._other_port)
        opening.callback(observer.close)
        groups = partial(quotas.groups, ticket_of=self.names.ticket)
        host = RpcHost(log=say, check=access.check, observe=observer.serve, groups=groups)
        return RpcServer(credentials, host=host), RpcServer(credentials, host=RpcHost(log=say, observe=observer.serve), door=True)

    def _make_transfers(
        self, opening: ExitStack, folders: RunFolders, quotas: TicketQuotas, notices: Notices, store: str
    ) -> Transfers:
        """``store``: the URL to which checkpoints are copied (empty: they are not)."""
        mirror = Mirror(store, notices.operator) if store else None
        if mirror is not None:
            opening.callback(mirror.close)
        handle = self.manager.handle
        return Transfers(runs=self.runs, folders=folders, quotas=quotas, notices=notices, mirror=mirror, handle=handle)

    def _make_notices(self, opening: ExitStack, log: BrokerLog, allowed: tuple[str, ...]) -> tuple[Notices, RunTrackers]:
        def warn(run: str, text: str) -> None:  # the trackers get messages from the notices, and send some themselves
            notices.everybody(run, text)

        trackers = RunTrackers(self.runs, warn, allowed)
        opening.callback(trackers.close)
        self._message_takers: list[MessageTaker] = [log.message, trackers.message]
        notices = Notices(log.say, self.runs, self._take_message)
        return notices, trackers

    def _make_network(self, links: LinkTable, dial_worker: Dial) -> Network:
        send = self.sessions.send
        reachability = Reachability(send, dial_worker)
        return Network(
            table=links,
            reachability=reachability,
            punching=HolePunching(send, reachability.holes.allows, self._same_host),
            probes=LinkProbes(send, links),
            relays=Relays(send),
            routes=Routes(self.runs.machine, self.runs.changed, reachability, send),
        )

    def _make_reports(self, notices: Notices) -> WorkerReports:
        manager = self.manager
        of_runs = RunReports(
            runs=self.runs,
            handle=manager.handle,
            notices=notices,
            network=self.network,
            recorder=manager.recorder,
            retained=manager.retained,
            helpers=manager.helpers,
            replanner=manager.replanner,
            stragglers=manager.stragglers,
            send=self.sessions.send,
        )
        return WorkerReports(
            runs=self.runs,
            handle=manager.handle,
            send=self.sessions.send,
            network=self.network,
            measurements=manager.measurements,
            recorder=manager.recorder,
            retained=manager.retained,
            of_runs=of_runs,
            stragglers=manager.stragglers,
            disk=self.sessions.put_disk,
        )

    def _serve_requests(
        self, opening: ExitStack, server: RpcServer, folders: RunFolders, others: tuple[Transfers, Submissions, DashboardTunnel]
    ) -> None:
        runs, manager, sessions = self.runs, self.manager, self.sessions
        watchers = Watchers(runs, folders, manager.handle)
        opening.callback(watchers.close)
        status = StatusQueries(
            runs=runs,
            sessions=sessions,
            folders=folders,
            network=self.network,
            measurements=manager.measurements,
            replanner=manager.replanner,
            stragglers=manager.stragglers,
        )
        control = RunControl(runs=runs, folders=folders, handle=manager.handle, send=sessions.send, owner_key=self.names.key)
        profile = LinkProfile(runs=runs, network=self.network)
        for part in (*others, status, watchers, control, profile):
            part.register(server)

    def _reset_standing(self, name: str) -> None:
        self.manager.handle(MemberReset(name=name))

    def ticket(self, scope: str = "join", validity: Seconds = _DAY) -> Ticket:
        """Return a new ticket: ``join`` for workers, ``submit`` for clients, ``owner`` for clients with all rights."""
        return self._admission.ticket(scope, self.addresses, validity)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of this broker, and those of the brokers that stand by."""
        return (self.address, *(self._leadership.standbys if self._leadership is not None else ()))

    def observe(self, take: MessageTaker) -> Callable[[], None]:
        """Call ``take`` with what the watchers of each run receive; it must not wait. Return what ends that."""
        self._message_takers = [*self._message_takers, take]
        return lambda: setattr(self, "_message_takers", [one for one in self._message_takers if one is not take])

    def _take_message(self, run: str, message: Message, records: int) -> None:
        for take in self._message_takers:
            take(run, message, records)

    def close(self) -> None:
        """End all runs and sessions, and join all threads; workers see that their broker ends."""
        self._closing.close()

    def _listen(self, door: RpcServer, server: RpcServer, listen: str, advertise: str | None) -> None:
        host, port = _split(listen)
        opened = door.listen(listen, anonymous=True).rpartition(":")[2]
        #: The port for members (firewalls must let it in, too): the one after the door's, or any free one if that is taken.
        self.member_port = self._listen_for_members(server, host, int(opened), fixed=port != 0)
        #: ``host:port`` of the door.
        self.address = f"{advertise or reachable_host(host)}:{opened}"
        self.store_addresses()
        server.start()
        door.start()

    def _same_host(self, one: str, other: str) -> bool:
        members = self.runs.machine.members
        found = [members.get(name) for name in (one, other)]  # without the lock: a member may just leave
        hosts = {"" if member is None else member.offer.host for member in found}
        return len(hosts) == 1 and "" not in hosts

    def _other_port(self, port: int) -> int:
        """Return the one of the two ports that ``port`` is not: each NAT type treats two ports in its own way."""
        door = int(self.address.rpartition(":")[2])
        return self.member_port if port == door else door

    def store_addresses(self) -> None:
        """Write the addresses to the folder, for the command that issues tickets."""
        write_file(self.home / ADDRESS_FILE, [" ".join(self.addresses).encode()])

    def _listen_for_members(self, server: RpcServer, host: str, door: int, *, fixed: bool) -> int:
        """Open the port that was open with ``door`` the last time, so that members find a restarted broker."""
        stored = self.home / "ports"
        ports = [door + 1] if fixed and door < 65535 else []
        with suppress(OSError, ValueError):
            last = [int(word) for word in stored.read_text(encoding="utf-8").split()]
            ports[:0] = last[1:2] if last[:1] == [door] and 0 < last[1] < 65536 else []
        for port in [*ports, 0]:
            try:
                found = _split(server.listen(f"{host}:{port}"))[1]
            except InputError:
                if not port:
                    raise
                continue  # it is taken; members learn the port when they join
            write_file(stored, [f"{door} {found}\n".encode()])
            return found
        raise AssertionError("port 0 is any free one")


def _dialer(credentials: Credentials, say: Callable[[str], None]) -> Dial:
    """Return a function that dials a worker from here, and checks its name."""
    contexts = TlsContexts(credentials)

    def dial_worker(name: str, address: str) -> None:
        try:
            dial(name, address, contexts, DIAL_SECONDS).close()
        except FarflungError as error:
            say(f"worker {name} cannot be reached from the broker, so it connects to the other workers itself: {error}")
            raise

    return dial_worker


def _stores(journal: Journal, standing: StandingBook, presence: PresenceBook, leadership: Leadership | None) -> Stores:
    if leadership is None:
        return Stores(journal=journal.write, standing=standing.write, presence=presence.write)
    return Stores(
        journal=leadership.journaled(journal.write),
        standing=standing.write,
        presence=presence.write,
        recorded=leadership.recorded,
    )


def advertised(listen: str, advertise: str | None) -> str:
    """Return the address by which other machines reach a broker that listens at ``listen``.

    Raises:
        InputError: ``listen`` is no address.
    """
    host, port = _split(listen)
    return f"{advertise or reachable_host(host)}:{port}"


def _split(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"{listen!r} is not an address to listen at; write host:port with a port up to 65535, e.g. 0.0.0.0:7070")
    return host, int(port)


def own_folder(home: Path) -> BinaryIO:
    """Lock ``home`` until the returned file is closed: two brokers would use each other's tickets and write each other's runs.

    Raises:
        InputError: it can't be made, or another broker uses it.
    """
    try:
        make_private_folder(home)
    except InputError as error:
        raise InputError(f"--home: {error}") from None
    file = (home / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InputError(f"another broker uses the folder {home}: end it, or give this one its own with --home") from None
    return file
