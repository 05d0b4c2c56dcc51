"""Which of several brokers leads: the lease of the leader, its writes, and the wait of a broker that stands by.

A leader renews its lease every second. If it cannot for the length of the lease (``lease_watch``), or if another broker leads,
it ends at once as if it was killed: whatever it did then could contradict the new leader. A standby takes over when it saw no
write of the leader for the length of the lease. The leader counts from before its last write, the standby from when it saw that
write, so the leader ends first. Even if a stopped leader wakes up later, the database refuses its writes (``database``).
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from farflung.broker.replication.database import Change, LeaderRow, RecordsDatabase, Superseded, Unreachable
from farflung.broker.replication.folder_copy import FolderCopy, copied_files, run_files
from farflung.broker.replication.folder_replay import FolderReplay
from farflung.broker.replication.lease_watch import LeaseWatch
from farflung.clock import monotonic, sleep
from farflung.errors import InputError, SecurityError
from farflung.protocol.leases import LEASE
from farflung.security.files import make_private_folder, read_private, write_private
from farflung.signal_event import SignalEvent
from farflung.thread_group import ThreadGroup

__all__ = ["Leadership"]

#: Seconds between two renewals, two looks of a standby, and two attempts to reach the database.
_RENEW, _LOOK, _RETRY = 1.0, 0.5, 0.2
#: Looks without a sign of a standby after which its address is removed.
_SILENT_LOOKS = 5
_CERTIFICATE = "authority/authority-certificate.pem"


class Leadership:
    """One broker's part in a cluster of several. ``lead`` or ``wait`` comes first; then ``start``, once the broker is open."""

    def __init__(self, home: Path, database: RecordsDatabase, end: Callable[[str], None], warn: Callable[[str], None]) -> None:
        """``home``: the broker's folder, which nobody else uses. ``end`` ends this process at once; it gets the cause.

        ``warn`` receives lines for the operator, from any thread.
        """
        make_private_folder(home)
        self._home, self._database, self._end = home, database, end
        self._replay = FolderReplay(home)
        self._row = LeaderRow()
        self._holder = _own_id(home)
        self._copy = FolderCopy(home, self._store, warn)
        self._lease = LeaseWatch(LEASE, end)
        self._over = threading.Event()
        #: Whether another broker may lead from now on, so that this process ends in order.
        self._handed_over = False
        self._threads = ThreadGroup()
        #: The addresses of the brokers that stand by.
        self.standbys: tuple[str, ...] = ()

    # -- before the broker is open ------------------------------------------------------------------------------------

    def lead(self, address: str) -> None:
        """Lead as the broker at ``address``: if nobody does, if this broker did before, or if the last leader is silent.

        Raises:
            InputError: another broker leads.
            SecurityError: the folder belongs to another cluster than the database.
            ConnectionLost: the database does not answer.
        """
        found = self._database.leader()
        self._check_cluster(found)
        until = monotonic() + LEASE
        while found.holder not in ("", self._holder):
            if monotonic() >= until:
                break
            self._over.wait(_LOOK)
            now = self._database.leader()
            if (now.term, now.beat) != (found.term, found.beat):
                raise self._led_by(now)
        try:
            self._begin(found, address)
        except Superseded:  # both were started at the same time
            raise self._led_by(self._database.leader()) from None

    def wait(self, address: str, ended: SignalEvent, say: Callable[[str], None]) -> bool:
        """Stand by as the broker at ``address``, and lead when the leader is gone; False if ``ended`` is set before.

        Raises:
            InputError: no broker has ever led this cluster.
            SecurityError: the folder belongs to another cluster than the database.
            ConnectionLost: the database does not answer.
        """
        found = self._database.leader()
        if not found.cluster:
            raise InputError(f"no broker has led the cluster in {self._database.name} yet: start one without --standby first")
        self._check_cluster(found)
        looks, seen, failure = 0, monotonic(), ""
        say(f"standing by at {address} for the broker at {found.address}")
        while not ended.is_set():
            try:
                looks += 1
                self._database.stand_by(address, looks)
                self._replay.follow(self._database.changes)
                now, failure = self._database.leader(), ""
                if (now.term, now.beat) != (found.term, found.beat):
                    if now.term != found.term:
                        say(f"the broker at {now.address} leads now")
                    found, seen = now, monotonic()
                if not now.holder or monotonic() - seen > LEASE:
                    say(f"the broker at {now.address} has {'ended' if not now.holder else 'not renewed its lease'}: taking over")
                    self._begin(now, address)
                    return True
            except Superseded:
                continue  # another standby was faster
            except Unreachable as error:
                if failure != str(error):  # once for each outage
                    say(f"warning: {error}")
                failure, seen = str(error), monotonic()  # nobody could renew a lease
            ended.wait(_LOOK)
        with suppress(Unreachable):
            self._database.leave(address)
        return False

    def _led_by(self, leader: LeaderRow) -> InputError:
        return InputError(
            f"the broker at {leader.address} leads this cluster ({self._database.name}): "
            "add --standby to take over when it is gone, or stop that broker first"
        )

    def _check_cluster(self, found: LeaderRow) -> None:
        own = _cluster_of(self._home)
        if own and found.cluster and own != found.cluster:
            raise SecurityError(
                f"the folder {self._home} belongs to another cluster (key {own[:12]}) than {self._database.name} "
                f"(key {found.cluster[:12]}): choose another --home, or another --records"
            )

    def _begin(self, found: LeaderRow, address: str) -> None:
        """Take the lead, and bring the folder to the state in the database; if it has none, it gets the folder's."""
        begin = monotonic()
        self._row = self._database.take(found, self._holder, address)
        self._lease.begin(begin)
        self._threads.spawn("lease", self._renew, on_error=_ending(self._end, "renew its lease"))
        self._patiently(lambda: self._replay.follow(self._database.changes))
        if not self._replay.whole:  # somebody has deleted files here
            self._replay = FolderReplay(self._home)
            self._patiently(lambda: self._replay.follow(self._database.changes))
        if self._replay.last:
            self._set_aside()
            self._copy.begin(self._replay.last, self._replay.files)

    def _set_aside(self) -> None:
        """Move away what the database does not have: what this broker wrote when it had lost the lead, such as a result."""
        for path in set(copied_files(self._home, checkpoints=False)) - self._replay.files.keys():
            place = self._home / "set-aside" / f"term-{self._row.term}" / path.relative_to(self._home)
            make_private_folder(place.parent)
            path.replace(place)

    # -- while it leads -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The broker is open and has its authority: copy its folder, and follow its changes."""
        self._copy.sync(copied_files(self._home, checkpoints=False))
        self._store((), cluster=_cluster_of(self._home))
        self._threads.spawn("folder-copy", self._follow, on_error=_ending(self._end, "copy its folder"))

    def journaled(self, write: Callable[..., None]) -> Callable[..., None]:
        """Return a function that writes an event of a run to the journal by ``write``, then stores both in the database."""

        def stored(run: str, what: str, /, **fields: object) -> None:
            write(run, what, **fields)
            # a run begins with the checkpoint that it continues; later checkpoints are in the object store
            files = run_files(self._home / "runs" / run, checkpoints=what == "submitted")
            if what == "over":
                self._copy.compact(files)
            journal = self._home / "journal.sqlite"
            if (error := self._copy.sync([*files, journal]).get(journal)) is not None:
                raise error

        return stored

    def recorded(self, run: str) -> None:
        """The records of ``run`` have grown."""
        self._copy.sync([self._home / "runs" / run / "metrics.jsonl"])

    def flush(self) -> None:
        """Store what has changed."""
        self._copy.sync(copied_files(self._home, checkpoints=False, over=lambda run: self._copy.has(run / "result.json")))

    def hand_over(self) -> None:
        """Store the last changes and end the term, so that a standby leads at once."""
        self._over.set()
        self._threads.join()
        self.flush()
        self._handed_over = True
        self._store((), ends=True)
        self._lease.close()

    def give_back(self) -> None:
        """No broker could be opened: end the term as it began, so that another one leads at once."""
        self._over.set()
        self._threads.join()
        self._handed_over = True
        with suppress(Superseded, Unreachable):  # the lease is gone anyway, and why no broker was opened matters more
            self._store((), ends=True)
        self._lease.close()
        self._database.close()

    def close(self) -> None:
        """The broker has closed: end the term, if there is one."""
        if not self._row.term:
            self._database.close()
            return
        self.hand_over()
        self._database.close()

    def abandon(self) -> None:
        """End the threads without a last write, as if the process was killed."""
        self._over.set()
        self._threads.join()
        self._lease.close()

    def _follow(self) -> None:
        """Copy what changes between events of runs: books, logs, the table of links."""
        with suppress(Superseded, Unreachable):  # this process is ending
            while not self._over.wait(_RENEW):
                with suppress(FileNotFoundError):  # a folder was deleted while it was listed
                    self.flush()

    def _renew(self) -> None:
        looks: dict[str, tuple[int, int]] = {}
        with suppress(Superseded, Unreachable):  # this process is ending
            while not self._over.wait(_RENEW):
                self._store(())
                with suppress(Unreachable):
                    self.standbys = self._alive(looks)

    def _alive(self, looks: dict[str, tuple[int, int]]) -> tuple[str, ...]:
        """Return the standbys that have given a sign recently. ``looks``: the last sign of each, and the looks since then."""
        alive = []
        for address, beat in self._database.standbys().items():
            last, silent = looks.get(address, (beat, 0))
            looks[address] = (beat, silent + 1 if last == beat else 0)
            if looks[address][1] > _SILENT_LOOKS:
                self._database.leave(address)
                del looks[address]
            else:
                alive.append(address)
        return tuple(alive)

    def _store(self, changes: Sequence[Change], *, cluster: str = "", ends: bool = False) -> None:
        """Write until the database answers. End this process if it does not lead any more."""

        def write() -> None:
            begin = monotonic()
            self._database.write(self._row.term, changes, cluster=cluster, ends=ends)
            self._lease.renew(begin)

        try:
            self._patiently(write)
        except Superseded as error:
            if not self._handed_over:
                self._end(f"{error}; this broker has no effect any more")
            raise

    def _patiently(self, call: Callable[[], None]) -> None:
        """Repeat ``call`` until the database answers. End this process when its lease is over."""
        while True:
            try:
                call()
            except Unreachable as error:
                if self._lease.expired:
                    self._end(f"this broker could not renew its lease: {error}")
                    raise
                sleep(_RETRY)
            else:
                return


def _ending(end: Callable[[str], None], what: str) -> Callable[[BaseException], None]:
    return lambda error: end(f"this broker could not {what}: {error}")


def _own_id(home: Path) -> str:
    """Return the id of the broker with this folder: a broker that is started again leads at once."""
    path = home / "broker-id"
    if not path.exists():
        write_private(path, secrets.token_hex(16).encode())
    return read_private(path).decode("ascii", "replace").strip()


def _cluster_of(home: Path) -> str:
    """Return the fingerprint of the authority in ``home`` (empty: there is none yet)."""
    try:
        return hashlib.sha256((home / _CERTIFICATE).read_bytes()).hexdigest()
    except OSError:
        return ""
