"""The broker's folders of runs: their owners, and how many bytes may be stored in them."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from farflung.broker.quotas import Quotas
from farflung.broker.records.checkpoint_room import CheckpointRoom, roomy
from farflung.broker.replication.leadership import Leadership
from farflung.checkpoint.store import write_file
from farflung.errors import InputError, SecurityError
from farflung.security import Caller
from farflung.units import Bytes, counted

__all__ = ["RunFolders", "StorageSettings", "safe_name"]

_OWNER = "owner.json"
_RUN, _TICKET = Bytes(256e9), Bytes(1e12)
_QUOTAS = Quotas()


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """What a broker stores. ``run``: bytes of one run at most; ``ticket``: of all runs that were submitted with one ticket.

    ``quotas``: what else the members of one ticket may do.
    ``mirror``: the URL of an object store to which checkpoints are copied (empty: they are not).
    ``trackers``: experiment trackers that jobs of submitters may use beside those that only write files; the owner's may use all.
    ``leadership``: stores what changes in a database, for brokers that stand by (None: there are none).
    """

    run: Bytes = _RUN
    ticket: Bytes = _TICKET
    mirror: str = ""
    quotas: Quotas = _QUOTAS
    trackers: tuple[str, ...] = ()
    leadership: Leadership | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner:
    """The owner of a run: the key with which it was submitted, and the name and ticket at that time."""

    key: str = ""
    name: str = ""
    ticket: str = ""


class RunFolders:
    """A folder for each run below ``root``. ``ticket_of`` returns the ticket with which a member joined. Any thread may call."""

    def __init__(self, root: Path, ticket_of: Callable[[str], str], settings: StorageSettings) -> None:
        self.root = root
        self.ticket_of = ticket_of
        self._settings = settings
        self._lock = threading.Lock()
        #: run -> bytes that are arriving, which its folder may not show yet
        self._arriving: dict[str, int] = {}
        #: run -> its owner, if its folder is deleted while this process lives
        self._owners: dict[str, _Owner] = {}

    def path(self, run: str) -> Path:
        """The folder of ``run`` (which may not exist).

        Raises:
            InputError: it can't be a folder's name.
        """
        return self.root / safe_name(run)

    def claim(self, run: str, caller: Caller) -> Path:
        """The folder of ``run``, which is the caller's from now on.

        Raises:
            SecurityError: it is somebody else's.
        """
        folder = self.path(run)
        with self._lock:
            if (folder / _OWNER).is_file():
                self.check(run, caller, "send to it")
                return folder
            folder.mkdir(parents=True, exist_ok=True)
            owner = {"key": caller.key, "name": caller.name, "ticket": self.ticket_of(caller.name)}
            write_file(folder / _OWNER, [json.dumps(owner).encode()])
        return folder

    def discard(self, run: str) -> None:
        """Delete what was sent for a run that is refused: it would count toward the limits."""
        with self._lock:
            shutil.rmtree(self.path(run), ignore_errors=True)
            self._owners.pop(run, None)

    def ticket(self, run: str) -> str:
        """The ticket with which ``run`` was submitted ("": unknown)."""
        return self._owner(self.path(run)).ticket

    def owns(self, run: str, caller: Caller) -> bool:
        """Whether ``run`` is the caller's, or the caller owns the broker."""
        return caller.role == "owner" or self._owner(self.path(run)).key == caller.key

    def check(self, run: str, caller: Caller, what: str) -> None:
        """See that ``run`` is the caller's, or that the caller owns the broker.

        Raises:
            SecurityError: neither.
        """
        if not self.owns(run, caller):
            owner = self._owner(self.path(run))
            raise SecurityError(
                f"run {run!r} belongs to {owner.name or 'nobody who is known'}: only who submitted it, with the same key "
                f"(~/.farflung/member-key.pem), or the broker's owner, on the broker's machine, may {what}"
            )

    def source(self, text: str, caller: Caller) -> Path:
        """The folder that a job resumes from: a run's name, or a path on this machine.

        Raises:
            InputError: ``text`` can't be a name or a path.
            SecurityError: the run is not the caller's, or the path leads elsewhere and the caller does not own the broker.
        """
        try:
            named = self.root / text
            chosen = named if named.is_dir() else Path(text)
            found, root, exists = chosen.resolve(), self.root.resolve(), chosen.is_dir()
        except (OSError, ValueError) as error:  # too long, or with a NUL
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(f"{text!r:.60} is neither a run nor a folder ({why}): name one of your runs") from None
        if found == root:
            raise InputError(f"{text!r:.60} is the folder of all runs: name one of your runs")
        if exists and caller.role != "owner":
            if not found.is_relative_to(root):
                raise SecurityError(
                    f"{text!r} is a folder of the broker's machine outside of its runs, from which only the broker's owner may "
                    "resume: name one of your runs"
                )
            self.check(found.relative_to(root).parts[0], caller, "resume from it")
        return chosen

    def counted(
        self, run: str, pieces: Iterable[bytes | memoryview], room: CheckpointRoom | None = None
    ) -> Iterator[bytes | memoryview]:
        """``pieces`` of an upload for ``run``, as long as the limits allow.

        ``room``: what the checkpoints of the run take, if the upload is a part of one.

        Raises:
            InputError: what is kept would be more than the broker keeps of a run, or of a ticket's runs.
        """
        arrived = 0
        kept, others = self._stored(run)
        what, need = "this upload", 0
        if room is not None:
            what, need = f"a checkpoint of {Bytes(room.one)} beside the {Bytes(kept)} there", kept + room.most * room.one
        try:
            for piece in pieces:
                size = memoryview(piece).nbytes
                arrived += size
                with self._lock:
                    self._arriving[run] = self._arriving.get(run, 0) + size
                    arriving = self._arriving[run]
                self._check_room(run, kept + arriving, others, what, need)
                yield piece
        finally:
            with self._lock:
                self._arriving[run] = self._arriving.get(run, 0) - arrived
                if self._arriving[run] <= 0:
                    del self._arriving[run]

    def check_documents(self, run: str, size: int) -> None:
        """See that there is room for the documents of a submission, of ``size`` bytes.

        Raises:
            InputError: what is kept would be more than the broker keeps of a run, or of a ticket's runs.
        """
        kept, others = self._stored(run)
        self._check_room(run, kept + size, others, "these documents")

    def check_checkpoints(self, run: str, size: int, room: CheckpointRoom) -> str:
        """See that there is room for the documents of a submission, of ``size`` bytes, and for the checkpoints of its run.

        Return a warning if there may be more checkpoints at once than there is room for (empty: there may not).

        Raises:
            InputError: the run would surely end at a checkpoint.
        """
        kept, others = self._stored(run)
        kept += size
        surely, need = kept + room.surely * room.one, kept + room.most * room.one
        what = f"{counted(room.surely, 'checkpoint')} of {Bytes(room.one)} beside the {Bytes(kept)} of the job"
        self._check_room(run, surely, others, what, need)
        try:
            what = f"up to {counted(room.most, 'checkpoint')} of {Bytes(room.one)} at once"
            self._check_room(run, need, others, what, need)
        except InputError as error:
            return f"warning: {error}"
        return ""

    def _stored(self, run: str) -> tuple[int, int]:
        """Return the bytes that are stored of ``run``, and of the other runs of its ticket."""
        ticket = self._owner(self.path(run)).ticket
        others = sum(_size(folder) for folder in self._folders() if folder.name != run and self._owner(folder).ticket == ticket)
        return _size(self.path(run)), others

    def _check_room(self, run: str, size: int, others: int, what: str, need: int = 0) -> None:
        """See that ``size`` bytes of ``run``, and ``others`` of the other runs of its ticket, are within the limits.

        ``need``: bytes of the run with all of its checkpoints (0: unknown).
        """
        if size > self._settings.run:
            raise InputError(
                f"run {run!r}: the broker keeps {self._settings.run} of a run at most, and {what} would pass that; "
                f"keep fewer checkpoints (checkpoint.keep), or start the broker with a larger --run-limit{_wish(need)}"
            )
        if others + size > self._settings.ticket:
            raise InputError(
                f"run {run!r}: the broker keeps {self._settings.ticket} of all runs of a ticket at most, and {what} would pass "
                f"that; remove old runs there, or start the broker with a larger --ticket-limit{_wish(need and others + need)}"
            )

    def _folders(self) -> list[Path]:
        return [folder for folder in self.root.iterdir() if folder.is_dir()] if self.root.is_dir() else []

    def _owner(self, folder: Path) -> _Owner:
        try:
            body = json.loads((folder / _OWNER).read_text(encoding="utf-8"))
            found = _Owner(key=str(body["key"]), name=str(body["name"]), ticket=str(body["ticket"]))
        except FileNotFoundError:
            return self._owners.get(folder.name, _Owner(key="nobody's"))
        except (OSError, ValueError, KeyError, TypeError):
            return _Owner(key="nobody's")
        self._owners[folder.name] = found
        return found


def _wish(need: int) -> str:
    """Return the limit that has room for ``need`` bytes (empty: unknown)."""
    return f", such as '{roomy(need)}'" if need else ""


def _size(folder: Path) -> int:
    """Bytes of the files below ``folder``; one that goes meanwhile counts nothing."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return total


def safe_name(run: str) -> str:
    """``run`` if it can be a folder's name.

    Raises:
        InputError: it is empty, too long, or holds other signs than letters, digits, ``-`` and ``_``.
    """
    if not run or len(run) > 100 or not run.isascii() or not all(sign.isalnum() or sign in "-_" for sign in run):
        raise InputError(f"{run!r:.120} is not a run's name: use at most 100 letters, digits, - and _")
    return run
