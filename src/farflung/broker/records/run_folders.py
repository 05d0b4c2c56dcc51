"""The broker's folders of runs: their owners, and how many bytes may be stored in them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from farflung.checkpoint.store import write_file
from farflung.errors import InputError, SecurityError
from farflung.security import Caller
from farflung.units import Bytes

__all__ = ["RunFolders", "StorageSettings", "safe_name"]

_OWNER = "owner.json"
_RUN, _TICKET = Bytes(256e9), Bytes(1e12)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """What a broker stores. ``run``: bytes of one run at most; ``ticket``: of all runs that were submitted with one ticket.

    ``mirror``: the URL of an object store to which checkpoints are copied (empty: they are not).
    ``trackers``: experiment trackers that jobs of submitters may use beside those that only write files; the owner's may use all.
    """

    run: Bytes = _RUN
    ticket: Bytes = _TICKET
    mirror: str = ""
    trackers: tuple[str, ...] = ()


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
        self._ticket_of = ticket_of
        self._settings = settings
        self._lock = threading.Lock()
        #: run -> bytes that are arriving, which its folder may not show yet
        self._arriving: dict[str, int] = {}

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
            owner = {"key": caller.key, "name": caller.name, "ticket": self._ticket_of(caller.name)}
            write_file(folder / _OWNER, [json.dumps(owner).encode()])
        return folder

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
            SecurityError: the run is not the caller's, or the path leads elsewhere and the caller does not own the broker.
        """
        named = self.root / text
        found = (named if named.is_dir() else Path(text)).resolve()
        inside = found.is_relative_to(self.root.resolve())
        if found.is_dir() and caller.role != "owner":
            if not inside:
                raise SecurityError(
                    f"{text!r} is a folder of the broker's machine outside of its runs, from which only the broker's owner may "
                    "resume: name one of your runs"
                )
            self.check(found.relative_to(self.root.resolve()).parts[0], caller, "resume from it")
        return named if named.is_dir() else Path(text)

    def counted(self, run: str, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """``pieces`` of an upload for ``run``, as long as the limits allow.

        Raises:
            InputError: what is kept would be more than the broker keeps of a run, or of a ticket's runs.
        """
        ticket = self._owner(self.path(run)).ticket
        kept = _size(self.path(run))
        others = sum(_size(folder) for folder in self._folders() if folder.name != run and self._owner(folder).ticket == ticket)
        arrived = 0
        try:
            for piece in pieces:
                size = memoryview(piece).nbytes
                arrived += size
                with self._lock:
                    self._arriving[run] = self._arriving.get(run, 0) + size
                    arriving = self._arriving[run]
                if kept + arriving > self._settings.run:
                    raise InputError(
                        f"run {run!r}: the broker keeps {self._settings.run} of a run at most, and this upload would pass that; "
                        "keep fewer checkpoints (checkpoint.keep), or start the broker with a larger --run-limit"
                    )
                if others + kept + arriving > self._settings.ticket:
                    raise InputError(
                        f"run {run!r}: the broker keeps {self._settings.ticket} of all runs of a ticket at most, and this upload "
                        "would pass that; remove old runs there, or start the broker with a larger --ticket-limit"
                    )
                yield piece
        finally:
            with self._lock:
                self._arriving[run] = self._arriving.get(run, 0) - arrived
                if self._arriving[run] <= 0:
                    del self._arriving[run]

    def _folders(self) -> list[Path]:
        return [folder for folder in self.root.iterdir() if folder.is_dir()] if self.root.is_dir() else []

    def _owner(self, folder: Path) -> _Owner:
        try:
            body = json.loads((folder / _OWNER).read_text(encoding="utf-8"))
            return _Owner(key=str(body["key"]), name=str(body["name"]), ticket=str(body["ticket"]))
        except (OSError, ValueError, KeyError, TypeError):
            return _Owner(key="nobody's")


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
