"""Running before other programs of the machine: what is measured is the product or the network, not who else computes here.

A nice value alone is not enough: Linux schedules sessions against each other first (autogroups, sched(7)), and nice values
count inside a session only. So the session's group gets the value too, and a program that begins a session of its own, as
workers of a benchmark do, carries its own value over to it. Needs root; without, nothing changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["carry_over", "favoured", "go_first"]

_FIRST = -19
_GROUP = Path("/proc/self/autogroup")


def go_first(group: Path = _GROUP) -> None:
    """Let this process, its session, and what they start come first."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)
    carry_over(group)


def carry_over(group: Path = _GROUP) -> None:
    """Give the session of this process the nice value that the process inherited."""
    _set_group(os.getpriority(os.PRIO_PROCESS, 0), group)


@contextmanager
def favoured(group: Path = _GROUP) -> Iterator[None]:
    """This thread, its session, and what they start come first while this lasts."""
    nice, before = os.getpriority(os.PRIO_PROCESS, 0), _group(group)
    go_first(group)
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        _set_group(before, group)


def _group(group: Path) -> int:
    with suppress(OSError, ValueError, IndexError):  # no autogroups here, or none for this session: its file is empty
        return int(group.read_text(encoding="ascii").split()[-1])
    return 0


def _set_group(nice: int, group: Path) -> None:
    with suppress(OSError):  # no autogroups here, or not allowed to us
        group.write_text(str(nice), encoding="ascii")
