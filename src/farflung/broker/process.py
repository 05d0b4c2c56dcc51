"""The broker process: tickets are exchanged for certificates, members' sessions are served, runs are looked after.

The decisions are those of the pure machine of ``protocol.broker``. ``sessions`` speaks with the workers, ``runs`` carries out
what the machine decides, ``methods`` answers clients.
"""

from __future__ import annotations

import fcntl
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from farflung.broker.client_requests import Methods
from farflung.broker.links.reachability import DIAL_SECONDS, Dial
from farflung.broker.links.table import LinkTable
from farflung.broker.planning import Judge
from farflung.broker.records.broker_log import BrokerLog
from farflung.broker.records.journal import Journal
from farflung.broker.records.mirror import Mirror
from farflung.broker.records.restore import restore
from farflung.broker.records.run_folders import RunFolders, UploadLimits
from farflung.broker.run_manager import Runs
from farflung.broker.sessions import Sessions
from farflung.checkpoint.store import write_file
from farflung.errors import FarflungError, InputError, SecurityError
from farflung.messages.fields import text
from farflung.messages.versions import PROTOCOL_VERSION, check_versions
from farflung.security import Credentials, Ticket, certificate_fingerprint, key_fingerprint
from farflung.security.authority import CertificateAuthority
from farflung.security.files import make_private_folder
from farflung.security.name_book import NameBook
from farflung.security.ticket_book import TicketBook
from farflung.transports.addresses import reachable_host
from farflung.transports.rpc import Call, RpcServer
from farflung.transports.tcp.sockets import TlsContexts, dial
from farflung.units import Seconds
from farflung.wire.frames import Frame

__all__ = ["ADDRESS", "Broker"]

_DAY = Seconds(86400.0)
#: How long a certificate, and the right to a name, lasts.
_MEMBER = 7 * 86400.0
#: Tickets that each role joins with; ``owner`` is for the broker's owner, who may do all.
_SCOPES = {"worker": ("join",), "client": ("submit", "owner")}
#: Names of clients' certificates begin with this, so that no client can speak as a worker.
_CLIENT = "client-"
_MAX_NAME = 63

#: The file of the broker's folder with the address that its tickets name, for ``farflung ticket issue``.
ADDRESS = "address"


def _nobody(line: str) -> None:
    del line


def _safely(say: Callable[[str], None]) -> Callable[[str], None]:
    """``say``, but nothing fails because nobody can be told (a closed terminal, a broken pipe, a full disk)."""

    def told(line: str) -> None:
        with suppress(OSError, ValueError):
            say(line)

    return told


class Broker:
    """Listens at two ports: one for those with a ticket, one (given on joining) for members with certificates."""

    def __init__(
        self,
        home: Path,
        *,
        listen: str = "0.0.0.0:7070",
        advertise: str | None = None,
        say: Callable[[str], None] = _nobody,
        judge: Judge | None = None,
        limits: UploadLimits | None = None,
    ) -> None:
        """``home`` keeps keys, tickets and runs. ``advertise``: the host that tickets name (default: that of ``listen``).

        ``say`` is told what a person at this machine may want to know, a line at a time, from any thread. ``judge`` predicts step
        times (default: the estimate's timed dry-run). ``limits``: what may be uploaded.

        Raises:
            InputError: the address can't be listened at, or another broker uses ``home``.
            SecurityError: the files of ``home`` are damaged.
        """
        self.home = home
        made = not home.exists()
        self._lock = _own(home)
        self._log = BrokerLog(home, _safely(say))
        say = self._say = self._log.say
        try:
            self._open(listen, advertise, say, judge, limits or UploadLimits())
        except BaseException:  # whatever went wrong, the folder is free again
            self._log.close()
            self._lock.close()
            if made:  # for nothing
                shutil.rmtree(home, ignore_errors=True)
            raise

    def _open(
        self, listen: str, advertise: str | None, say: Callable[[str], None], judge: Judge | None, limits: UploadLimits
    ) -> None:
        self._authority = CertificateAuthority.open(self.home / "authority", time.time())
        self._credentials = self._authority.server_credentials(time.time())
        self.tickets = TicketBook(self.home / "tickets.sqlite")
        self.names = NameBook(self.home / "names.sqlite", say)
        self._sessions = Sessions(say, self.names.advance)
        self._links = LinkTable(self.home / "links.json", say)
        self._runs = Runs(self._sessions.send, say, judge, self._links, _dialler(self._credentials, say), self._log.frame)
        self._methods = Methods(
            self._runs, self._sessions, RunFolders(self.home / "runs", self.names.ticket, limits), self.names.key
        )
        self._journal = Journal(self.home / "journal.sqlite", say)
        self._runs.note = self._journal.note
        restore(self._journal, self.home / "runs", self._runs, say)
        self._door, self._server = RpcServer(self._credentials, door=True), RpcServer(self._credentials)
        self._door.unary("join", self._join, anonymous=True)
        self._server.unary("renew", self._renew)
        self._server.unary("withdraw", self._withdraw)
        self._server.session("session", lambda call, frames: self._sessions.serve(self._runs, call, frames))
        self._methods.register(self._server)
        host, port = _split(listen)
        door = self._door.listen(listen, anonymous=True)
        self._member_port = self._listen_for_members(host, int(door.rpartition(":")[2]), fixed=port != 0)
        self.address = f"{advertise or reachable_host(host)}:{door.rpartition(':')[2]}"
        write_file(self.home / ADDRESS, [self.address.encode()])
        self._server.start()
        self._door.start()
        threading.Thread(target=self._sessions.watch, args=(self._runs,), name="leases", daemon=True).start()

    @property
    def member_port(self) -> int:
        """The port for members (firewalls must let it in, too): the one after the door's, or any free one if that is taken."""
        return self._member_port

    def ticket(self, scope: str = "join", validity: Seconds = _DAY) -> Ticket:
        """A fresh ticket: ``join`` for workers, ``submit`` for those who hand in jobs, ``owner`` for who may do all."""
        fingerprint = certificate_fingerprint(self._credentials.certificate)
        return self.tickets.issue(scope, addresses=[self.address], fingerprint=fingerprint, now=time.time(), validity=validity)

    def mirror(self, url: str) -> None:
        """Copy checkpoints to the object store ``url`` from now on.

        Raises:
            InputError: it can't be opened.
        """
        self._methods.mirror = Mirror(url, self._say)

    def close(self) -> None:
        """End all runs and sessions; workers see their broker go."""
        mirror = self._methods.mirror
        files = (self._links, self._journal, self._log, self._lock)
        parts = (self._door, self._runs, mirror, self._methods, self._sessions, self._server, *files)
        with ExitStack() as all_of_them:  # whatever goes wrong with one, the others are closed
            for part in reversed(parts):
                if part is not None:
                    all_of_them.callback(part.close)

    def _listen_for_members(self, host: str, door: int, *, fixed: bool) -> int:
        """The port that it was when ``door`` was opened last, so that members find a broker that was started again."""
        kept = self.home / "ports"
        ports = [door + 1] if fixed and door < 65535 else []
        with suppress(OSError, ValueError):
            last = [int(word) for word in kept.read_text(encoding="utf-8").split()]
            ports[:0] = last[1:2] if last[:1] == [door] and 0 < last[1] < 65536 else []
        for port in [*ports, 0]:
            try:
                found = _split(self._server.listen(f"{host}:{port}"))[1]
            except InputError:
                if not port:
                    raise
                continue  # somebody has it; members are told the port when they join
            write_file(kept, [f"{door} {found}\n".encode()])
            return found
        raise AssertionError("port 0 is any free one")

    def _renew(self, call: Call, frame: Frame) -> Frame:
        """A fresh certificate for who shows one: the same name, role and key."""
        check_versions(frame.header, PROTOCOL_VERSION)
        caller, now, request = call.caller, time.time(), frame.header.get("request")
        assert caller is not None
        ticket = self.names.ticket(caller.name)
        if not caller.key or self.names.key(caller.name) != caller.key:
            raise SecurityError(f"the name {caller.name!r} is not bound to this key any more; join again with a ticket")
        if any(record.ticket_id == ticket and record.revoked is not None for record in self.tickets.list()):
            raise SecurityError(
                f"the ticket that {caller.name!r} joined with was revoked; ask the broker's owner for a fresh one"
            )
        certificate = self._authority.sign(
            request if isinstance(request, bytes) else b"", name=caller.name, role=caller.role, now=now
        )
        if key_fingerprint(certificate) != caller.key:
            raise SecurityError("a certificate is renewed for its own key only; join again with a ticket")
        return self._granted(certificate, caller.name, caller.role, ticket)

    def _withdraw(self, call: Call, frame: Frame) -> Frame:
        """Somebody with a certificate ends before its session began."""
        del frame
        assert call.caller is not None
        self._sessions.withdrawn(call.caller.name)
        return Frame("withdrawn")

    def _granted(self, certificate: bytes, name: str, role: str, ticket: str) -> Frame:
        now = time.time()
        self.names.bind(name, key_fingerprint(certificate), ticket, now=now, until=now + _MEMBER)
        if role == "worker":
            self._sessions.admitted(name)
        answer = {"certificate": certificate, "authority": self._credentials.authority, "port": self._member_port, "name": name}
        return Frame("joined", answer)

    def _join(self, call: Call, frame: Frame) -> Frame:
        header = frame.header
        check_versions(header, PROTOCOL_VERSION)
        role = text(header, "role")
        if role not in ("worker", "client"):
            raise SecurityError(f"unknown role {role!r:.40}: known are client, worker")
        known = _SCOPES[role]
        scope = known[-1] if header.get("scope") == known[-1] else known[0]
        now = time.time()
        secret, request = header.get("secret"), header.get("request")
        record = self.tickets.check(text(header, "ticket"), secret if isinstance(secret, bytes) else b"", scope, now)
        name = _granted_name(text(header, "name"), role)
        if role == "worker" and self._sessions.serves(name):
            raise SecurityError(
                f"the name {name!r} is taken by a worker that is connected; choose another with --name, or end that one first"
            )
        granted = "owner" if scope == "owner" else role
        certificate = self._authority.sign(request if isinstance(request, bytes) else b"", name=name, role=granted, now=now)
        return self._granted(certificate, name, role, record.ticket_id)


def _dialler(credentials: Credentials, say: Callable[[str], None]) -> Dial:
    """Tries whether a worker can be dialled from here, and proves its name."""
    contexts = TlsContexts(credentials)

    def dial_worker(name: str, address: str) -> None:
        try:
            dial(name, address, contexts, DIAL_SECONDS).close()
        except FarflungError as error:
            say(f"worker {name} cannot be reached from the broker, so it connects to the other workers itself: {error}")
            raise

    return dial_worker


def _granted_name(asked: str, role: str) -> str:
    """The name that the certificate will say.

    Raises:
        SecurityError: a worker asks for a name by which it could speak for the broker or for a client.
    """
    if role == "client":
        return asked if asked.startswith(_CLIENT) else f"{_CLIENT}{asked}"[:_MAX_NAME].rstrip("-_")
    if asked == "broker" or asked.startswith(_CLIENT):
        raise SecurityError(f"a worker can't be called {asked!r}: choose another name with --name")
    return asked


def _split(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"{listen!r} is not an address to listen at; write host:port with a port up to 65535, e.g. 0.0.0.0:7070")
    return host, int(port)


def _own(home: Path) -> BinaryIO:
    """Hold ``home`` for this process: two brokers would hand out each other's tickets and write each other's runs."""
    make_private_folder(home)
    file = (home / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InputError(f"another broker uses the folder {home}: end it, or give this one its own with --home") from None
    return file
