"""What a machine's owner wants of the worker on it: a small file that commands write and the worker looks at.

The file outlives the worker: a machine that was paused is still paused after it was started again. It lies in the owner's own
folder, so who may write it is whom the machine belongs to; no network and no ticket is needed.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from farflung.clock import local_time, wall_time
from farflung.errors import DiskFull, InputError
from farflung.protocol.members import Parting
from farflung.security.files import make_private_folder, write_private
from farflung.units import Bytes, BytesPerSecond, Quantity

__all__ = ["OwnerLimits", "OwnerLimitsFile", "known_workers"]

_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]|24):([0-5]\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """What the owner of a machine allows its worker.

    ``paused``: take no part until further notice. ``parting``: as ``MemberWants``. ``hours``: when the machine may work, by
    its own clock (``22:00-07:00``; empty: always). ``memory``: bytes for training. ``bandwidth``: bytes per second that the
    worker may send to its peers in all (None: no cap). ``pid``: the worker's process (0: none runs).
    """

    paused: bool = False
    parting: str = ""
    hours: str = ""
    memory: float | None = None
    bandwidth: float | None = None
    pid: int = 0

    def __post_init__(self) -> None:
        if self.hours:
            _minutes(self.hours)
        if self.parting not in list(Parting):
            raise InputError(f"unknown way to go {self.parting!r}: known are drain, leave")
        _check_least("memory", Bytes, self.memory)
        _check_least("bandwidth", BytesPerSecond, self.bandwidth)

    def rests(self, minute: int) -> bool:
        """Whether it shall not work at ``minute`` of the day (0 to 1439)."""
        if self.paused or not self.hours:
            return self.paused
        begin, end = _minutes(self.hours)
        return not (begin <= minute < end if begin <= end else minute >= begin or minute < end)

    def in_force(self, minute: int) -> dict[str, Any]:
        """What the broker must know at ``minute`` of the day."""
        found: dict[str, Any] = {"paused": self.rests(minute), "parting": self.parting}
        if self.memory is not None:
            found["memory"] = self.memory
        found["bandwidth"] = self.bandwidth
        return found

    def __str__(self) -> str:
        parts = ["paused"] if self.paused else []
        parts += [f"parting: {self.parting}"] if self.parting else []
        parts += [f"works from {self.hours.replace('-', ' to ')}"] if self.hours else []
        parts += [f"memory {Bytes(self.memory).written()}"] if self.memory is not None else []
        parts += [f"sends at most {BytesPerSecond(self.bandwidth).written()}"] if self.bandwidth is not None else []
        return ", ".join(parts) or "no limits"


class OwnerLimitsFile:
    """The limits of the worker ``name``, in ``folder``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.path = name, folder / f"{name}.json"

    def read(self) -> OwnerLimits:
        """Return the limits (none, where there is no file).

        Raises:
            InputError: the file is damaged.
        """
        try:
            body = json.loads(self.path.read_text(encoding="utf-8"))
            return OwnerLimits(**body)
        except FileNotFoundError:
            return OwnerLimits()
        except (OSError, ValueError, TypeError, InputError) as error:
            raise InputError(f"{self.path} can't be read: {error}; delete it to begin anew") from None

    def change(self, **changes: Any) -> OwnerLimits:
        """Store changed limits; return all of them."""
        limits = replace(self.read(), **changes)
        make_private_folder(self.path.parent)
        write_private(self.path, json.dumps(asdict(limits)).encode())
        return limits

    def begin(self, limits: Mapping[str, Any]) -> OwnerLimits:
        """This process is the worker now; ``limits`` replace the stored ones, as far as they are set.

        Raises:
            InputError: another process of this machine is the worker of this name.
        """
        given = {key: value for key, value in limits.items() if value is not None}
        with _locked(self.path.parent):
            if self._belongs_to_another:
                pid = self.read().pid
                raise InputError(f"a worker called {self.name!r} runs here already (process {pid}); choose another --name")
            return self.change(pid=os.getpid(), parting="", **given)

    @classmethod
    def claim(cls, folder: Path, name: str) -> OwnerLimitsFile:
        """Make this process the worker ``name``, or ``name-2`` and so on if the names before belong to workers that run."""
        with _locked(folder):
            names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
            found = next(one for one in (cls(folder, name) for name in names) if not one._belongs_to_another)
            found.change(pid=os.getpid())
            return found

    def end(self, before: OwnerLimits | None = None) -> None:
        """This process is the worker no more. ``before``: limits to store again, because this worker never joined."""
        again = {} if before is None else {key: getattr(before, key) for key in ("hours", "memory", "bandwidth")}
        with suppress(DiskFull, InputError):  # the process's number is checked by whoever reads it
            self.change(pid=0, parting="", **again)

    @property
    def _belongs_to_another(self) -> bool:
        """Whether another process of this machine is the worker of this name."""
        pid = self.read().pid
        return pid not in (0, os.getpid()) and _runs(pid)

    @property
    def runs(self) -> bool:
        """Whether the worker runs on this machine."""
        pid = self.read().pid
        return pid != 0 and _runs(pid)


def known_workers(folder: Path) -> list[OwnerLimitsFile]:
    """The workers that have ever run here and are kept in ``folder``."""
    return [OwnerLimitsFile(folder, path.stem) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []


def minute_of_day() -> int:
    """By this machine's own clock."""
    now = local_time(wall_time())
    return now.tm_hour * 60 + now.tm_min


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time take a name."""
    make_private_folder(folder)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _minutes(hours: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(hours)
    if match is None:
        raise InputError(f"hours must be like 22:00-07:00, got {hours!r:.40}")
    first, first_minute, last, last_minute = map(int, match.groups())
    return first * 60 + first_minute, last * 60 + last_minute


def _check_least(what: str, kind: type[Quantity], limit: float | None) -> None:
    """Nobody can work with less than one byte, and rates are divided by."""
    if limit is not None and not limit >= 1.0:
        least, got = kind(1.0).written(), kind(limit).written()
        raise InputError(f"a limit of {what} must be at least {least}, got {got}: farflung pause lets a worker rest")


def _runs(pid: int) -> bool:
    """Whether ``pid`` is a farflung process of this machine: numbers are used again after a reboot."""
    if pid == os.getpid():
        return True
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return not Path("/proc/self/cmdline").exists()
    return b"farflung" in command
