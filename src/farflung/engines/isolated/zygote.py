"""The process that forks the processes that compute: ``python -m farflung.engines.isolated.zygote DESCRIPTOR ENGINE``.

It loads the engine once (seconds), so that a fork takes milliseconds. It stays at one thread, because a thread pool does not
survive a fork, and it never touches an accelerator. It was started by exec with an environment of its own, so there are no keys,
sockets or data of the worker in its memory. Each process that computes has a guard, the first process of its namespace, which
reports how it ended. The guard ends when the worker closes the status socket, and the kernel then ends the rest.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from farflung.engines.base import Engine, EngineSettings, MicroBatch
from farflung.engines.isolated.arena import Arena
from farflung.engines.isolated.control import Exited, Locked, Spawn, Started, receive_with_files, send
from farflung.engines.isolated.lockdown import Limits, adopt_orphans, lock_down, new_namespaces, raise_loopback
from farflung.engines.isolated.service import Service
from farflung.engines.present import PRESENT
from farflung.engines.registry import get_engine
from farflung.graph.cut import cut
from farflung.graph.ir import Graph, Op, OpKind, State, StateKind, StateRef, TensorSpec, ValueRef

__all__ = ["main"]

#: Descriptors that a message can carry (SCM_RIGHTS).
_FILES = 253


def main(arguments: Sequence[str]) -> None:
    """Load the engine, then fork for each ``Spawn`` until the worker closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the worker ends this process
    control = socket.socket(fileno=int(arguments[0]))
    engine = get_engine(arguments[1])
    engine.set_threads(1)
    if engine.forks_after_use:
        _warm_up(engine)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards report for themselves, and nobody waits for their ends
    adopt_orphans()
    send(control, Started(version=engine.version()))
    while True:
        spawn, files = receive_with_files(control, Spawn, _FILES)
        if spawn is None:
            return
        if os.fork() == 0:
            control.close()
            _guard(engine, spawn, files)
        for file in files:
            os.close(file)


def _warm_up(engine: Engine) -> None:
    """Train one micro-batch of a tiny graph: libraries load what they load late, and decide which instructions they use."""
    scalar, row = TensorSpec(dtype="float32", shape=()), TensorSpec(dtype="float32", shape=(4,))
    weight = State(name="weight", kind=StateKind.PARAMETER, spec=row, trainable=True)
    x = Op(name="x", kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(row,))
    args = (ValueRef("x"), StateRef("weight"))
    product = Op(name="product", kind=OpKind.PARAMETRIC, target="aten.mul.Tensor", args=args, outputs=(row,))
    total = (ValueRef("product"),)
    loss = Op(name="loss", kind=OpKind.NON_PARAMETRIC, target="aten.sum.default", args=total, outputs=(scalar,))
    graph = Graph(name="warm-up", ops=(x, product, loss), states=(weight,), outputs=(("loss", ValueRef("loss")),))
    runner = engine.open(cut(graph, [(0, 3)])[0], EngineSettings())
    ones = np.ones(4, np.float32)
    runner.load({"weight": ones})
    runner.forward(MicroBatch(0, 0), {}, {"x": ones})
    runner.backward(MicroBatch(0, 0), {}, 1.0)
    runner.finish_gradients({})
    engine.clip_scale(list(runner.gradient_norms().values()), 1.0)
    runner.update([0.1], None)


def _guard(engine: Engine, spawn: Spawn, files: Sequence[int]) -> None:
    """Fork the processes that compute, in new namespaces where the kernel allows it, and report an end; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    channels, memories, status = files[: spawn.ranks], files[spawn.ranks : -1], files[-1]
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):  # else a job could write to the owner's terminal
        os.dup2(nowhere, standard)
    _close_all_but(files)
    alone = new_namespaces()
    if alone and spawn.ranks > 1:
        raise_loopback()  # the ranks of a site reach each other, and nothing else
    if alone and os.fork():
        os._exit(0)  # the child is the first process of the new namespace
    children = [os.fork()]
    while children[-1] and len(children) < spawn.ranks:
        children.append(os.fork())
    if children[-1] == 0:
        rank = len(children) - 1
        _close_all_but((channels[rank], memories[rank]))
        _compute(engine, spawn, (channels[rank], memories[rank]), alone=alone)
    for file in (*channels, *memories):
        os.close(file)
    _watch(children, socket.socket(fileno=status), spawn.scratch)


def _close_all_but(files: Sequence[int]) -> None:
    first = 3
    for file in sorted(files):
        os.closerange(first, file)
        first = file + 1
    os.closerange(first, max(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _watch(children: Sequence[int], status: socket.socket, scratch: str) -> None:
    """Wait for the end of a child or of the worker, end the rest, and remove ``scratch``; never returns."""
    ends = [os.pidfd_open(child) for child in children]
    poll = select.poll()
    for file in (*ends, status.fileno()):  # the status also when the worker has closed its end
        poll.register(file, select.POLLIN)
    found = [file for file, _ in poll.poll()]
    ended = next((rank for rank, end in enumerate(ends) if end in found), None)
    report = None if ended is None else _report(children[ended], ended)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    if report is not None:
        with suppress(OSError):  # the worker is gone
            send(status, report)
    for rank, child in enumerate(children):
        if rank != ended:
            os.waitpid(child, 0)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


def _report(child: int, rank: int) -> Exited:
    _, code, usage = os.wait4(child, 0)
    killed = os.WTERMSIG(code) if os.WIFSIGNALED(code) else 0
    left = os.WEXITSTATUS(code) if os.WIFEXITED(code) else 0
    return Exited(signal=killed, code=left, resident=1024 * usage.ru_maxrss, rank=rank)


def _compute(engine: Engine, spawn: Spawn, files: Sequence[int], *, alone: bool) -> None:
    """Lock this process up, then compute until the worker closes the channel; never returns."""
    code = 1
    try:
        tempfile.tempdir = os.environ["TMPDIR"] = spawn.scratch
        channel = socket.socket(fileno=files[0])
        arena = Arena(files[1], own=1)
        PRESENT.share(arena.label)
        limits = Limits(
            memory=spawn.memory,
            accelerator=spawn.accelerator,
            scratch=spawn.scratch,
            speaks=spawn.ranks > 1,
            disk=spawn.disk,
        )
        holds = lock_down(limits, namespaces=alone)
        send(channel, Locked(holds=holds))
        Service(engine, channel, arena).serve()
    except SystemExit:
        code = 0
    finally:
        os._exit(code)  # what the parent's libraries would do at an exit is not this process's business


if __name__ == "__main__":
    main(sys.argv[1:])
