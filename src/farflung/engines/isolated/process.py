"""The worker's side of the processes: the one that forks, started by exec, and one that computes for each attempt."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from farflung.child_processes import end_all
from farflung.clock import monotonic
from farflung.engines.isolated.arena import Arena, make_file
from farflung.engines.isolated.control import (
    Answer,
    Done,
    Exited,
    Locked,
    Message,
    Reached,
    Refused,
    Spawn,
    Started,
    receive,
    send,
)
from farflung.engines.isolated.service import error_of
from farflung.engines.present import LABEL_BYTES
from farflung.errors import EngineCrashed, InputError
from farflung.units import Bytes, Seconds

__all__ = ["Compute", "Deadlines", "Zygote"]

#: Variables that the engine's libraries read; the others of the worker, its ticket among them, stay with the worker.
_KEPT = ("PATH", "HOME", "LANG", "TZ", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
_KEPT_PREFIXES = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH_", "PYTORCH_", "CUDA_",
                  "NVIDIA_", "JAX_", "XLA_",   "HIP_", "ROCR_", "ZE_", "LC_")  # fmt: skip
_START_SECONDS, _END_SECONDS, _LOCK_SECONDS = 300.0, 10.0, 60.0
#: So long after an error of one rank the guard may report that another rank has died.
_DEATH_SECONDS = 2.0


class Deadlines:
    """How long a call may take: ``first`` seconds at first, then ``_PATIENCE`` times the slowest so far, at least ``floor``.

    ``computing``: how long a forward or backward may take, derived from the plan's prediction (0: there is none).
    """

    _PATIENCE = 30.0
    _COMPUTES = ("the forward", "the backward")

    def __init__(self, floor: float = 300.0, first: float = 3600.0, computing: float = 0.0) -> None:
        self._floor, self._first, self._computing = floor, first, computing
        self._slowest: dict[str, float] = {}

    def of(self, what: str) -> float:
        """Seconds that a call of the kind ``what`` may take."""
        if self._computing and what in self._COMPUTES:
            return max(self._computing, self._PATIENCE * self._slowest.get(what, 0.0))
        return max(self._floor, self._PATIENCE * self._slowest[what]) if what in self._slowest else self._first

    def took(self, what: str, seconds: float) -> None:
        """A call of the kind ``what`` has taken ``seconds``."""
        self._slowest[what] = max(self._slowest.get(what, 0.0), seconds)


class Zygote:
    """The process that forks. Any thread may call; it is started with the first call that needs it, and again if it has died."""

    def __init__(self, engine: str = "torch", disk: int = 0) -> None:
        """``engine``: the name of the engine that computes. ``disk``: bytes that its processes may write into one file."""
        self.engine, self.disk = engine, disk
        #: Guards the fields below: one request is on the control socket at a time, and one process is started.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._version = ""

    @property
    def pid(self) -> int:
        """The number of the process that forks (0: it does not run)."""
        return 0 if self._process is None else self._process.pid

    @property
    def version(self) -> str:
        """The engine's ``version``.

        Raises:
            InputError: the process that forks can't start.
        """
        with self._lock:
            self._started()
            return self._version

    def fork(self, request: Spawn, files: Sequence[int]) -> None:
        """Fork processes that compute; ``files``: the ends of their channels, the shared memories, and the status.

        Raises:
            InputError: the process that forks can't start.
        """
        with self._lock:
            try:
                send(self._started(), request, files=files)
            except OSError:  # it has died since
                self._stop()
                send(self._started(), request, files=files)

    def _started(self) -> socket.socket:
        """The control socket; the lock is held."""
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._stop()
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-P", "-m", "farflung.engines.isolated.zygote", str(other.fileno()), self.engine]
        with other:
            self._process = subprocess.Popen(  # noqa: S603 - this very program, without a shell
                words,
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )
        self._control = own
        started = receive(own, Started) if _readable(own, _START_SECONDS) else None
        if started is None:
            self._stop()
            raise InputError(
                f"the process that runs the engine {self.engine!r} did not start: its error is above; "
                "--isolation off computes in the worker's own process"
            )
        self._version = started.version
        return own

    def close(self) -> None:
        """End the process that forks; processes that compute stay until their attempts end."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            end_all([self._process], _END_SECONDS)
        self._control = self._process = None


class Compute:
    """The processes that compute for one attempt (one, or the ranks of a site), and a channel to each.

    They have one guard, and the end of one ends the others. One thread at a time calls; any thread may ``end`` them.
    """

    def __init__(
        self,
        zygote: Zygote,
        memory: int,
        *,
        shared: int,
        accelerator: bool = False,
        deadlines: Deadlines | None = None,
        ranks: int = 1,
    ) -> None:
        """Fork them. ``memory``: bytes that each may have for tensors (0: no limit); ``shared``: of each shared memory.

        Raises:
            EngineCrashed: one ends before it is ready.
            InputError: the process that forks can't start.
        """
        self._deadlines = deadlines or Deadlines()
        #: How the processes have died (``None``: they have not, as far as known).
        self._death: EngineCrashed | None = None
        self.ranks = ranks
        self.scratch = tempfile.mkdtemp(prefix="farflung-scratch-")
        self._channels: list[socket.socket] = []
        self.arenas: list[Arena] = []
        with ExitStack() as opened:
            opened.callback(shutil.rmtree, self.scratch, ignore_errors=True)
            self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(self._status)
            with ExitStack() as passed:
                passed.enter_context(status)
                files = [self._channel(opened, passed) for _ in range(ranks)]
                files += [self._memory(shared, opened, passed) for _ in range(ranks)]
                request = Spawn(memory=memory, accelerator=accelerator, scratch=self.scratch, ranks=ranks, disk=zygote.disk)
                zygote.fork(request, [*files, status.fileno()])
            #: The protections that hold.
            self.holds = self._locked()
            #: What ``close`` releases.
            self._opened = opened.pop_all()

    def _channel(self, opened: ExitStack, passed: ExitStack) -> int:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channels.append(opened.enter_context(own))
        return passed.enter_context(other).fileno()

    def _memory(self, nbytes: int, opened: ExitStack, passed: ExitStack) -> int:
        file = make_file(nbytes)
        passed.callback(os.close, file)
        self.arenas.append(Arena(file, own=0))
        opened.callback(self.arenas[-1].close)
        return file

    def _locked(self) -> tuple[str, ...]:
        """Wait until all are ready; return the protections that hold in each of them."""
        holds: list[tuple[str, ...]] = []
        for channel, arena in zip(self._channels, self.arenas, strict=True):
            locked = receive(channel, Answer, arena) if _readable(channel, _LOCK_SECONDS) else None
            if not isinstance(locked, Locked):
                raise self._died("at its start")
            holds.append(locked.holds)
        return tuple(name for name in holds[0] if all(name in one for one in holds))

    def post(self, message: Message, rank: int = 0, files: Sequence[int] = ()) -> None:
        """Send ``message`` to a process, with ``files``; ``answer`` waits for its answer. Arrays must have been written before.

        Raises:
            EngineCrashed: the process has died.
        """
        if self._death is not None:
            raise self._death
        arena = self.arenas[rank]
        # Here nobody reads the last answer any more, and the process writes none: only its reader notes which pages it takes.
        arena.trim()
        with suppress(OSError):  # the wait for the answer finds out why
            send(self._channels[rank], message, arena, files)

    def answer(self, what: str, rank: int = 0) -> Done | Reached:
        """Wait for the answer to the last message; ``what`` names the call.

        Raises:
            FarflungError: the engine refuses, with its own error.
            EngineCrashed: the process has died, or does not answer in time.
        """
        if self._death is not None:
            raise self._death
        begun = monotonic()
        channel, arena = self._channels[rank], self.arenas[rank]
        limit = self._deadlines.of(what)
        answer: Any = None
        if _readable(channel, limit):
            answer = receive(channel, Answer, arena)
        elif channel.fileno() >= 0:
            raise self._dead(f"{what}{self._present(rank)}: no answer within {Seconds(limit)}; its process was ended")
        if answer is None:
            raise self._died(f"in {what}{self._present(rank)}")
        self._deadlines.took(what, monotonic() - begun)
        if isinstance(answer, Refused):
            raise error_of(answer.kind, answer.text)
        if not isinstance(answer, (Done, Reached)):
            raise self._dead(f"the process that computes answered {what} with {type(answer).__name__}; it was ended")
        return answer

    def readable(self, ranks: Sequence[int], what: str) -> list[int]:
        """Wait until one of ``ranks`` has answered ``what``, or its time is over; return those that have."""
        poll = select.poll()
        channels = {self._channels[rank].fileno(): rank for rank in ranks}
        for channel in channels:
            poll.register(channel, select.POLLIN)
        return [channels[channel] for channel, _ in poll.poll(1e3 * self._deadlines.of(what))]

    def death(self, where: str) -> EngineCrashed | None:
        """Return how a process has died, after an error of another one, which can arrive first (None: all live)."""
        if self._death is None and _readable(self._status, _DEATH_SECONDS):
            return self._died(where)
        return self._death

    @property
    def lost(self) -> bool:
        """Whether the processes have ended, as far as known."""
        return self._death is not None

    def end(self) -> None:
        """End the processes, from any thread; a call that waits raises ``EngineCrashed``."""
        self._death = self._death or EngineCrashed("the process that computes was ended")
        for end in (*self._channels, self._status):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits; close alone would not

    def close(self) -> None:
        """End the processes and release everything; nobody may call afterwards."""
        self.end()
        self._opened.close()

    def _present(self, rank: int) -> str:
        """The operator that runs, as the process has noted it: foreign text."""
        found = bytes(self.arenas[rank].label).rstrip(b"\0").decode("utf-8", "replace")[:LABEL_BYTES]
        text = "".join(letter if letter.isprintable() else "?" for letter in found)
        return f", {text}" if text else ""

    def _died(self, where: str) -> EngineCrashed:
        if self._death is not None:
            return self._death  # it was ended from here
        ended = receive(self._status, Exited) if _readable(self._status, _END_SECONDS) else None
        process = "the process that computes"
        if ended is None:
            return self._dead(f"{process} was ended {where}")
        if self.ranks > 1:
            process, where = f"rank {ended.rank} of {self.ranks}", f"(the site noticed {where})"
        if ended.signal:
            size = (
                f" (it had {Bytes(ended.resident)}; the system may be short of memory)" if ended.signal == signal.SIGKILL else ""
            )
            return self._dead(f"{process} died of {_signal_name(ended.signal)} {where}{size}")
        return self._dead(f"{process} ended with status {ended.code} {where}")

    def _dead(self, text: str) -> EngineCrashed:
        self._death = EngineCrashed(text)
        self.end()
        return self._death


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real time have no names
        return f"signal {number}"


def _readable(end: socket.socket, seconds: float) -> bool:
    """Wait at most ``seconds`` until ``end`` can be read, or the other end is closed."""
    if end.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(1e3 * seconds))


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """What the process that forks gets of the variables ``own``."""
    kept = {name: value for name, value in own.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    place = str(Path(__file__).parents[3])  # a checkout that is not installed
    paths = [path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, place])), "PYTHONDONTWRITEBYTECODE": "1"}
