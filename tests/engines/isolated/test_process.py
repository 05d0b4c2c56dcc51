"""How a process that computes can end: by a signal, by its limit of memory, by a deadline, from another thread."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from farflung.engines import EngineSettings, MicroBatch, StageRunner
from farflung.engines.base import Engine
from farflung.engines.isolated import AttemptEngine, IsolatedEngine, Zygote, start_attempt
from farflung.engines.isolated import process as starting
from farflung.engines.isolated.process import Compute, Deadlines
from farflung.errors import EngineCrashed, GraphError, InputError
from farflung.graph.cut import cut
from farflung.graph.ir import Graph, InitStep, LocalRef, State, StateKind, TensorSpec
from tests.support.engines.unguarded import crashing_graph, without_guards
from tests.support.network.quiet import until

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
ONES = np.ones(4, np.float32)


def opened(engine: Engine, graph: Graph) -> StageRunner:
    runner = engine.open(cut(graph, [(0, len(graph.ops))])[0], EngineSettings())
    runner.load({"weight": ONES})
    return runner


def loss(runner: StageRunner) -> float:
    return float(runner.forward(MicroBatch(0, 0), {}, {"x": ONES}).outputs["loss"])


@pytest.fixture
def unguarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IsolatedEngine]:
    paths = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([without_guards(tmp_path / "start"), paths]))
    zygote = Zygote()
    yield IsolatedEngine(zygote)
    zygote.close()


def compute_process(zygote: Zygote) -> psutil.Process:
    """The newest process that computes for this process: they share memory, and its parent, the guard, has the same command."""
    command, mine = psutil.Process(zygote.pid).cmdline(), _shared_memory(os.getpid())
    alike = {one.pid: one for one in psutil.process_iter() if _command(one) == command}
    found = [one for one in alike.values() if one.ppid() in alike and one.ppid() != zygote.pid and _shared_memory(one.pid) & mine]
    return max(found, key=psutil.Process.create_time)


def _shared_memory(pid: int) -> set[str]:
    """The memory files that the process has mapped, by inode."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # it has ended
        return set()
    return {line.split()[4] for line in lines if "/memfd:" in line}


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_native_crash_is_an_error_with_signal_and_operator(unguarded: IsolatedEngine) -> None:
    attempt = unguarded.attempt("cpu", 1 << 30)
    runner = opened(attempt, crashing_graph())
    with pytest.raises(EngineCrashed) as caught:
        loss(runner)
    operator = "operator 'quotient' (aten.div.Tensor_mode)"
    assert str(caught.value) == f"the process that computes died of SIGFPE in the forward, {operator}"
    assert attempt.lost
    with pytest.raises(EngineCrashed, match="SIGFPE"):
        runner.states()
    again = unguarded.attempt("cpu", 1 << 30)
    assert loss(opened(again, crashing_graph(crashes=False))) == 4.0
    assert not again.lost


def test_the_checks_refuse_what_would_crash(engine: IsolatedEngine) -> None:
    attempt = engine.attempt("cpu", 1 << 30)
    with pytest.raises(
        GraphError, match=r"operator 'quotient' \(aten.div.Tensor_mode\) failed: the smallest int64 is divided by -1"
    ):
        loss(opened(attempt, crashing_graph()))
    assert not attempt.lost


def test_memory_beyond_the_limit_is_refused(engine: IsolatedEngine) -> None:
    size = 1 << 29
    spec = TensorSpec(dtype="float32", shape=(size,))
    steps = (InitStep(target="aten.ones.default", args=((size,),)), InitStep(target="aten.neg.default", args=(LocalRef(0),)))
    state = State(name="big", kind=StateKind.BUFFER, spec=spec, init=steps)
    graph = crashing_graph(crashes=False)
    graph = Graph(name="g", ops=graph.ops, states=(*graph.states, state), outputs=graph.outputs)
    attempt = engine.attempt("cpu", 1 << 28)
    with pytest.raises(GraphError, match=r"the initializer of 'big' failed at aten.ones.default: .*allocate"):
        attempt.initial_states(graph, 0, ["big"])
    assert not attempt.lost


def test_a_process_that_does_not_answer_is_ended(zygote: Zygote) -> None:
    attempt = start_attempt(zygote, 1 << 28, deadlines=Deadlines(floor=0.05, first=0.05))
    process = compute_process(zygote)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(EngineCrashed, match=r"^listing the devices: no answer within 50 ms; its process was ended$"):
        attempt.devices()
    psutil.wait_procs([process], timeout=30)
    assert not process.is_running()


def test_another_thread_can_end_a_call_that_waits(zygote: Zygote) -> None:
    attempt = start_attempt(zygote, 1 << 28)
    compute_process(zygote).send_signal(signal.SIGSTOP)
    raised: list[BaseException] = []
    caller = threading.Thread(target=lambda: _call(attempt, raised), name="caller")
    caller.start()
    attempt.end()
    caller.join(60)
    assert [str(error) for error in raised] == ["the process that computes was ended"]


def _call(attempt: AttemptEngine, raised: list[BaseException]) -> None:
    try:
        attempt.devices()
    except EngineCrashed as error:
        raised.append(error)


def test_a_killed_process_says_how_large_it_was(zygote: Zygote) -> None:
    attempt = start_attempt(zygote, 1 << 28)
    compute_process(zygote).kill()
    with pytest.raises(EngineCrashed, match=r"died of SIGKILL in listing the devices \(it had .* MB; the system may be short"):
        attempt.devices()


def test_a_signal_without_a_name_is_a_number(zygote: Zygote) -> None:
    attempt = start_attempt(zygote, 1 << 28)
    compute_process(zygote).send_signal(signal.SIGRTMIN + 3)
    with pytest.raises(EngineCrashed, match=f"died of signal {signal.SIGRTMIN + 3} in listing the devices"):
        attempt.devices()


def test_the_process_ends_with_the_last_reference(zygote: Zygote) -> None:
    attempt = start_attempt(zygote, 1 << 28)
    runner = opened(attempt, crashing_graph(crashes=False))
    process = compute_process(zygote)
    del attempt
    assert loss(runner) == 4.0
    del runner
    psutil.wait_procs([process], timeout=30)
    assert not process.is_running()


def test_a_process_that_cannot_start_leaves_no_folder(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(starting, "make_file", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Cannot allocate memory"):
        start_attempt(zygote, 1 << 28)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


_WORKER = """
import sys
from farflung.engines.isolated import Zygote, start_attempt
from tests.engines.isolated.test_process import compute_process
zygote = Zygote()
attempt = start_attempt(zygote, 1 << 28)
print(zygote.pid, compute_process(zygote).pid, attempt._compute.scratch, flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_a_worker_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WORKER]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    try:
        assert worker.stdout is not None
        zygote, compute, scratch = worker.stdout.readline().split()
        processes = [psutil.Process(int(zygote)), psutil.Process(int(compute))]
        assert Path(scratch).is_dir()
    finally:
        worker.kill()
        worker.communicate()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert alive == []
    until(lambda: not Path(scratch).exists())


def test_attempts_leave_no_files_processes_or_folders(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    start_attempt(zygote, 1 << 28)  # whatever is opened once
    gc.collect()
    own, forks = psutil.Process(), psutil.Process(zygote.pid)
    files, forked_files = own.num_fds(), forks.num_fds()
    for _ in range(20):
        start_attempt(zygote, 1 << 28)
    gc.collect()
    assert own.num_fds() <= files
    assert forks.num_fds() <= forked_files
    until(lambda: not forks.children(recursive=True), PATIENCE)  # zombies would stay
    assert list(tmp_path.iterdir()) == []


def test_the_process_that_forks_collects_the_guards(zygote: Zygote) -> None:
    attempt = start_attempt(zygote, 1 << 28)
    guard = psutil.Process(compute_process(zygote).ppid())
    assert guard.ppid() == zygote.pid, "else the first process of a container would have to"
    attempt.end()


def test_an_attempt_that_does_not_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    zygote = Zygote("strange")
    before = psutil.Process().num_fds()
    with pytest.raises(InputError, match="did not start"):
        Compute(zygote, 1 << 28, shared=1 << 28)
    gc.collect()
    assert psutil.Process().num_fds() == before
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_does_not_start_is_an_error_with_a_remedy() -> None:
    zygote = Zygote("strange")
    with pytest.raises(InputError, match=r"the process that runs the engine 'strange' did not start: .*--isolation off"):
        _ = zygote.version
    zygote.close()
