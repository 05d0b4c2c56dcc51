"""A broker and workers as processes of this machine, started through the same commands that people type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from farflung.broker.records.run_store import RunStore
from farflung.child_processes import end_all
from farflung.client.connection import Client
from farflung.clock import monotonic
from farflung.cluster import Topology
from farflung.engines.base import Array
from farflung.errors import ConnectionLost, TrainingError
from farflung.graph.ir import Graph, StateKind
from farflung.messages.submission import Bundle
from farflung.plan.model import Plan
from farflung.security import Ticket, new_key
from farflung.telemetry import RunFolder
from farflung.telemetry.records import EvaluationRecord, RunResult, StepRecord
from farflung.worker.membership import join

__all__ = ["Finished", "LocalCluster", "finished"]

_TICKET = re.compile(r"farflung join (\S+)|--ticket (\S+)")
_ADDRESS = re.compile(r"broker at (\S+) ")
_START_SECONDS, _END_SECONDS = 120.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that is over: its folder's contents."""

    folder: Path
    result: RunResult
    plan: Plan
    topology: Topology
    steps: tuple[StepRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]

    def states(self) -> dict[str, Array]:
        """Parameters and persistent buffers of the newest checkpoint.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        graph = Graph.from_json(RunFolder(self.folder).graph.read_text(encoding="utf-8"))
        names = [state.name for state in graph.states if state.persistent and state.kind is not StateKind.CONSTANT]
        return dict(RunStore(self.folder).checkpoint_states(names, optimizer=False))


class LocalCluster:
    """``farflung broker`` and one ``farflung join`` for each of ``names``; a context manager that ends them all.

    ``unreliable``: more workers, which say that they may go at any time.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        data: Path | None = None,
        unreliable: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.names = (*names, *unreliable)
        #: Those of ``names`` that may go at any time.
        self.unreliable = frozenset(unreliable)
        self._data = data or folder
        #: The processes that were started and not ended, by name.
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._key = new_key()  # one for all clients, to which their name belongs
        self.ticket = self._join_ticket = ""

    def __enter__(self) -> LocalCluster:
        with ExitStack() as undo:
            undo.callback(self.close)
            self._start()
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End workers and broker; when this returns, or is interrupted, nobody writes into the folder any more."""
        with self._lock:
            self._closed = True
        try:
            end_all(tuple(reversed(self.processes.values())), _END_SECONDS)
        finally:
            self.processes.clear()

    def log(self, name: str) -> str:
        """What a process printed."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def run(self, bundle: Bundle) -> Finished:
        """Submit ``bundle`` and wait until it is over.

        Raises:
            TrainingError: the run failed.
        """
        client = self.client()
        try:
            answer = client.submit(bundle)
            for _ in client.watch(answer["run"]):
                pass
        finally:
            client.close()
        return finished(Path(answer["folder"]))

    def client(self) -> Client:
        """One who may submit, once all workers have joined."""
        client = Client(join(Ticket.parse(self.ticket), name=f"bench-{os.getpid()}", role="client", key=self._key))
        with ExitStack() as undo:
            undo.callback(client.close)
            self._wait_for_workers(client)
            undo.pop_all()
        return client

    def kill(self, name: str) -> None:
        """SIGKILL for the broker or a worker; returns when it is dead."""
        self.processes[name].kill()
        self.processes[name].wait()

    def add(self, name: str, *, unreliable: bool = False) -> None:
        """Start one more worker."""
        self._join(name, unreliable=unreliable)

    def restart(self, name: str) -> None:
        """Start what was killed again, with the same command; the broker at the same port."""
        self.start_process(name, self._commands[name])

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        listen = ["--listen", "127.0.0.1:0"]
        self.start_process(
            "broker", ["-m", "farflung", "broker", "-v", *listen, "--no-web", "--home", str(self.folder / "broker")]
        )
        self._join_ticket = self.await_tickets()
        for name in self.names:
            self._join(name, unreliable=name in self.unreliable)

    def _join(self, name: str, *, unreliable: bool) -> None:
        listen = ["--listen", "127.0.0.1:0"]
        words = ["-m", "farflung", "join", self._join_ticket, "--name", name, *listen, "--data", str(self._data), "-v"]
        self.start_process(name, [*words, "--unreliable"] if unreliable else words)

    def start_process(self, name: str, arguments: list[str]) -> None:
        """Start the process ``name`` with its interpreter and ``arguments``; its output goes to its log."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "FARFLUNG_HOME": str(self.folder / "home")}
        self._commands[name] = arguments
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [self.interpreter(name), *arguments]
            with self._lock:
                if not self._closed:  # who starts a process again may do so in a thread
                    self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)  # noqa: S603

    def interpreter(self, name: str) -> str:
        """Return the Python that the process ``name`` runs under."""
        del name
        return sys.executable

    def await_tickets(self) -> str:
        """Wait until the broker has printed its tickets; keeps the one to submit and returns the one to join."""
        for _ in self.patiently("broker"):
            found = _TICKET.findall(self.log("broker"))
            if len(found) >= 2:
                self.ticket = found[1][1]
                address = _ADDRESS.search(self.log("broker"))
                if address is not None:
                    listen = self._commands["broker"]
                    listen[listen.index("--listen") + 1] = address[1]
                return str(found[0][0])
        raise ConnectionLost(f"the broker did not start within {_START_SECONDS:g} s; it said: {self.log('broker')[-400:]!r}")

    def _wait_for_workers(self, client: Client) -> None:
        for _ in self.patiently(*self.names):
            members = client.status()["members"]
            assert isinstance(members, list)
            if {member["name"] for member in members} >= set(self.names):
                return
        raise ConnectionLost(f"not all workers joined within {_START_SECONDS:g} s")

    def patiently(self, *names: str) -> _Patience:
        """Iterate at a pace until patience ends; an error names a process of ``names`` that has ended."""
        return _Patience(self, names)

    def check_alive(self, names: Sequence[str]) -> None:
        """See that the processes called ``names`` still run.

        Raises:
            ConnectionLost: one of them ended; the text has its last words.
        """
        for name in names:
            process = self.processes.get(name)
            if process is not None and process.poll() is not None:
                raise ConnectionLost(f"{name} ended with {process.returncode}; it said: {self.log(name)[-400:]!r}")


class _Patience:
    """Tries every tenth of a second while the processes live and the time to start is not over."""

    def __init__(self, cluster: LocalCluster, names: Sequence[str]) -> None:
        self._cluster = cluster
        self._names = names
        self._until = monotonic() + _START_SECONDS
        self._pause = threading.Event()

    def __iter__(self) -> _Patience:
        return self

    def __next__(self) -> None:
        self._cluster.check_alive(self._names)
        if monotonic() > self._until:
            raise StopIteration
        self._pause.wait(0.1)


def finished(root: Path) -> Finished:
    """What the run with the folder ``root`` left.

    Raises:
        TrainingError: it failed.
    """
    folder = RunFolder(root)
    result = folder.read_result()
    if result is None or result.status == "failed":
        cause = "it left no result" if result is None else result.cause
        raise TrainingError(f"the run of the benchmark failed: {cause}")
    records = folder.committed()
    return Finished(
        folder=root,
        result=result,
        plan=Plan.from_json(folder.plan.read_text(encoding="utf-8")),
        topology=Topology.from_json(folder.topology.read_text(encoding="utf-8")),
        steps=tuple(record for record in records if isinstance(record, StepRecord)),
        evaluations=tuple(record for record in records if isinstance(record, EvaluationRecord)),
    )
