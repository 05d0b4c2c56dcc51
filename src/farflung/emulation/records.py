"""Which emulations run on this machine, and removing what one has left behind whose owner and router were both killed.

Namespaces and devices vanish with the processes that hold them. What can outlive these is a program that runs in a namespace;
a record of each emulation in ``/run/farflung-emulation`` says how to find it.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from farflung.clock import monotonic, sleep
from farflung.emulation.kernel import processes_in

__all__ = ["MARK", "RECORDS", "Record", "emulation_id", "listed", "process_start", "sweep"]

RECORDS = Path("/run/farflung-emulation")
#: The variable by which a node's program knows its emulation.
MARK = "FARFLUNG_EMULATION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One emulation. ``owner``, ``router``: (process id, start in clock ticks since boot). ``namespaces``: their numbers."""

    id: str
    topology: str
    owner: tuple[int, int]
    router: tuple[int, int]
    namespaces: tuple[int, ...]
    nodes: tuple[str, ...]

    @property
    def owned(self) -> bool:
        """Whether the owner lives."""
        return process_start(self.owner[0]) == self.owner[1]

    @property
    def routed(self) -> bool:
        """Whether the router lives."""
        return process_start(self.router[0]) == self.router[1]

    def write(self, folder: Path = RECORDS) -> Path:
        """Keep it; the file."""
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{self.id}.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


def emulation_id(owner: int, router: int) -> str:
    """How an emulation is called, after the ids of its processes."""
    return f"{owner}-{router}"


def process_start(process: int) -> int | None:
    """When a process began, in clock ticks since boot; None: there is none (or it has ended and waits for its parent)."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def listed(folder: Path = RECORDS) -> list[Record]:
    """All records, the oldest first; files that are none are passed over."""
    found = []
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            found.append(
                Record(
                    id=path.stem,
                    topology=str(body["topology"]),
                    owner=(int(body["owner"][0]), int(body["owner"][1])),
                    router=(int(body["router"][0]), int(body["router"][1])),
                    namespaces=tuple(int(number) for number in body["namespaces"]),
                    nodes=tuple(str(name) for name in body["nodes"]),
                )
            )
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            continue
    return found


def sweep(folder: Path = RECORDS, *, wait: float = 0.0) -> list[str]:
    """Remove what emulations without a living owner have left: their programs, their routers, their records. Which, by id.

    A router without owner removes everything itself; it has ``wait`` seconds for it, and with 0 it is left alone.
    """
    swept = []
    for record in listed(folder):
        if record.owned:
            continue
        end = monotonic() + wait
        while record.routed and monotonic() < end:
            sleep(0.05)
        if record.routed:
            if not wait:
                continue
            _kill(record.router[0])
        for process in processes_in(set(record.namespaces)):
            # The number of a namespace may have been given to another since; the mark tells.
            if _marked(process, record.id):
                _kill(process)
        (folder / f"{record.id}.json").unlink(missing_ok=True)
        swept.append(record.id)
    return swept


def _marked(process: int, emulation: str) -> bool:
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={emulation}".encode() in variables


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
