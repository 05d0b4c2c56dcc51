"""A cluster of processes on this machine to which things happen: kills, stops, cut and damaged connections, full disks, clocks.

Every process runs under ``farflung.chaos.saboteur``, and every connection of a worker passes a wire of
``farflung.chaos.wires``, so each fault can be made without root. Packet loss and rates are what ``farflung emulate`` is for.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import psutil

from farflung.chaos.faults import Fault
from farflung.chaos.kills import BROKER
from farflung.chaos.local_cluster import LocalCluster
from farflung.chaos.saboteur import Order
from farflung.chaos.wires import Board, Wire
from farflung.clock import monotonic
from farflung.errors import TrainingError
from farflung.security import Ticket
from farflung.thread_group import ThreadGroup

__all__ = ["WildCluster"]

_MEMBERS = re.compile(r"broker at \S+?:(\d+) \(members: port (\d+)\)")
#: How long a process may take to come to a named moment.
_MOMENT_SECONDS = 60.0


class WildCluster(LocalCluster):
    """``strike`` lets a fault happen; what it needs to be over happens on a thread of its own."""

    def __init__(self, folder: Path, names: Sequence[str], *, data: Path | None = None) -> None:
        super().__init__(folder, names, data=data)
        self._board = Board()
        self._wires: list[Wire] = []
        self._faults = ThreadGroup()

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def close(self) -> None:
        """End processes and wires."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        super().close()
        for wire in self._wires:
            wire.close()
        self._wires.clear()
        self._faults.join(_MOMENT_SECONDS)

    def strike(self, fault: Fault, over: Callable[[float | None], None]) -> None:
        """Let ``fault`` happen. ``over`` hears, from another thread, when it struck (``monotonic``), once all is well again.

        None: the process did not come to the fault's moment in time.
        """
        self._faults.spawn(f"fault-{fault.kind}", lambda: over(self._strike(fault)))

    def _strike(self, fault: Fault) -> float | None:
        name, pause = fault.victim, threading.Event()
        if fault.moment:
            Order(do=fault.kind, point=fault.moment, seconds=fault.seconds).give(self._order(name))
            struck = self._came(name, fault.kind)
            if struck is None:
                self._order(name).unlink(missing_ok=True)
                return None
        else:
            struck = monotonic()
            self._begin(fault)
        if fault.kind == "kill":
            self.processes[name].wait()
            self.restart(name)
        elif fault.kind in ("stop", "partition", "one_way"):
            pause.wait(fault.seconds)
            self._board.heal(name)
            self.processes[name].send_signal(signal.SIGCONT)
        elif fault.kind == "full_disk":
            pause.wait(fault.seconds)
        return struck

    def _begin(self, fault: Fault) -> None:
        name = fault.victim
        if fault.kind == "kill":
            self.kill(name)
        elif fault.kind == "stop":
            self.processes[name].send_signal(signal.SIGSTOP)
        elif fault.kind == "partition":
            self._board.cut(name)
        elif fault.kind == "one_way":
            self._board.cut(name, "out")
        elif fault.kind == "corrupt":
            self._board.corrupt(name)
        else:
            Order(do=fault.kind, seconds=fault.seconds).give(self._order(name))

    def _came(self, name: str, kind: str) -> float | None:
        """When the process came to its moment: it is dead, or stopped, or has taken the order."""
        until, pause = monotonic() + _MOMENT_SECONDS, threading.Event()
        process = self.processes[name]
        while monotonic() < until:
            if kind == "kill" and process.poll() is not None:
                return monotonic()
            if kind == "stop" and psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                return monotonic()
            if kind not in ("kill", "stop") and not self._order(name).exists():
                return monotonic()
            pause.wait(0.005)
        return None

    def _order(self, name: str) -> Path:
        return self.folder / f"{name}.order"

    def start_process(self, name: str, arguments: list[str]) -> None:
        """See ``LocalCluster.start_process``: the process runs under ``saboteur``."""
        if name not in self._commands:
            at = arguments.index("farflung")
            arguments = ["-m", "farflung.chaos.saboteur", str(self._order(name)), *arguments[at + 1 :]]
            if name != BROKER:
                arguments = self._wired(name, arguments)
        super().start_process(name, arguments)

    def _wired(self, name: str, arguments: list[str]) -> list[str]:
        """Join through wires: one to each port of the broker, and one to where other workers reach it."""
        ports = _MEMBERS.search(self.log(BROKER))
        if ports is None:
            raise TrainingError(f"the broker did not say its ports; it said {self.log(BROKER)[-300:]!r}")
        number = self.names.index(name) + 1
        for port in map(int, ports.groups()):
            self._wires.append(Wire(self._board, (f"127.0.1.{number}", port), ("127.0.0.1", port), near=name, far=BROKER))
        own = _free_port()
        self._wires.append(Wire(self._board, (f"127.0.2.{number}", own), ("127.0.0.1", own), near=self._dialler, far=name))
        place = arguments.index("join") + 1
        ticket = replace(Ticket.parse(arguments[place]), addresses=(f"127.0.1.{number}:{ports[1]}",))
        listen = arguments.index("--listen") + 1
        arguments[place], arguments[listen] = str(ticket), f"127.0.0.1:{own}"
        return [*arguments, "--advertise", f"127.0.2.{number}"]

    def _dialler(self, port: int) -> str:
        """Which worker dialled from ``port``."""
        for name, process in self.processes.items():
            try:
                ends = psutil.Process(process.pid).net_connections(kind="tcp")
            except psutil.Error:
                continue
            if any(end.laddr.port == port for end in ends):
                return name
        return ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
