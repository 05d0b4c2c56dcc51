"""A cluster of threads in which one worker of five forges the gradients of its stage, and others verify a share of the work.

Broker and workers are those of ``farflung broker`` and ``farflung join``, over the loopback interface. The forger gives wrong
gradients from a certain step on, in all micro-batches; it is honest when it verifies others. One worker is a spare.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from farflung.api.submission import bundle_job
from farflung.broker.process import Broker
from farflung.client.connection import Client
from farflung.engines.base import Array, StageRunner
from farflung.errors import ConnectionLost
from farflung.graph.ir import Use
from farflung.job import make_job
from farflung.messages.watching import RecordLine, Result
from farflung.security import kept_key
from farflung.step.reduction.gradient_exchange import GradientExchange
from farflung.telemetry import RunResult, StepRecord, read_record
from farflung.units import Seconds
from farflung.worker.membership import join
from farflung.worker.options import WorkerOptions
from farflung.worker.process import Worker

__all__ = ["FORGER", "Attack", "VerifiedRun", "train_verified"]

#: What becomes of a gradient; the second array is an old gradient.
Attack = Callable[[Array, Array], Array]

_STAGES, _REPLICAS, _AGE = 2, 5, 10
FORGER = "w3"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRun:
    """``loss``: the mean of the last steps. ``status`` and ``cause`` of the end. ``named``: workers in quarantine."""

    loss: float
    status: str
    cause: str
    named: tuple[str, ...]


class _Forger:
    """A runner whose gradients of parameters are forged."""

    def __init__(self, runner: StageRunner, attack: Attack, old: Mapping[str, deque[Array]]) -> None:
        self._runner, self._attack, self._old = runner, attack, old

    def take_gradients(self) -> Mapping[Use, Array]:
        """See ``StageRunner``."""
        found = self._runner.take_gradients()
        for use, array in found.items():
            self._old[use.state].append(np.array(array))
        return {use: self._attack(array, self._old[use.state][0]) for use, array in found.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


@contextmanager
def _forging(attack: Attack, first: int) -> Iterator[None]:
    """Inside, the forger forges from step ``first`` on."""
    honest = GradientExchange.after_backward
    old: defaultdict[str, deque[Array]] = defaultdict(lambda: deque(maxlen=_AGE + 1))

    def after(self: GradientExchange, step: int, stage: int, micro_batch: int, runner: StageRunner) -> None:
        forges = step >= first and self._order.device == FORGER
        honest(self, step, stage, micro_batch, _Forger(runner, attack, old) if forges else runner)

    with mock.patch.object(GradientExchange, "after_backward", after):
        yield


def train_verified(attack: Attack | None, *, steps: int, share: float, last: int, seed: int = 0) -> VerifiedRun:
    """Train with ``share`` of the work verified; ``attack`` begins after a fifth of the ``steps`` (``None``: nobody forges)."""
    with tempfile.TemporaryDirectory(prefix="farflung-hostile-") as place:
        folder = Path(place)
        (folder / "corpus").mkdir()
        (folder / "corpus" / "text.txt").write_text("".join(f"def f{i}(x):\n    return x + {i * i}\n" for i in range(400)))
        with nullcontext() if attack is None else _forging(attack, steps // 5), _cluster(folder) as client:
            return _followed(client, folder, steps, share, last, seed)


@contextmanager
def _cluster(folder: Path) -> Iterator[Client]:
    """A broker, workers for all replicas, and a spare one."""
    broker = Broker(folder / "broker", listen="127.0.0.1:0", say=lambda line: None)
    broker.sessions.leases.length = Seconds(120.0)  # all threads share one interpreter
    key = kept_key(folder / "member-key.pem")
    workers, threads = list[Worker](), list[threading.Thread]()
    client = Client(join(broker.ticket("submit"), name="client", role="client", key=key))
    try:
        for number in range(_STAGES * _REPLICAS + 1):
            options = WorkerOptions(isolation="off", listen="127.0.0.1:0", memory=4e9, data=folder)
            member = join(broker.ticket("join"), name=f"w{number}", role="worker", key=key)
            workers.append(Worker(member, options, lambda line: None))
            threads.append(threading.Thread(target=_serve, args=(workers[-1],), name=f"worker-{number}", daemon=True))
            threads[-1].start()
        yield client
    finally:
        client.close()
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(timeout=60.0)
        for worker in workers:
            worker.close()
            worker.carried.device.engine.end()
        broker.close()


def _serve(worker: Worker) -> None:
    with suppress(ConnectionLost):
        worker.serve()


def _followed(client: Client, folder: Path, steps: int, share: float, last: int, seed: int) -> VerifiedRun:
    document = {
        "seed": seed,
        "steps": steps,
        "workers": _STAGES * _REPLICAS,
        "micro_batch_sizes": [4] * (2 * _REPLICAS),
        "model": {"recipe": "gpt", "args": {"vocab": 256, "sequence": 32, "layers": 2, "width": 32, "heads": 2}},
        "data": {"kind": "text", "path": "corpus", "tokenizer": "bytes", "sequence": 32},
        "optimizer": {"name": "adamw", "lr": 3e-3, "clip_norm": 1.0},
        "plan": {"planner": "equal_compute", "replicas": _REPLICAS, "again": False},
        "checkpoint": {"every": max(steps // 20, 1), "keep": 99},
        "verify": {"share": share},
    }
    bundle = bundle_job(make_job(document), base=folder)
    client.submit(bundle)
    losses: dict[int, float] = {}
    status = cause = ""
    for message in client.watch(bundle.run):
        if isinstance(message, RecordLine):
            record = read_record(message.line)
            if isinstance(record, StepRecord):
                losses[record.step] = record.loss
        elif isinstance(message, Result):
            result = RunResult.from_json(message.result)
            status, cause = result.status, result.cause
    members = client.status()["members"]
    assert isinstance(members, list)
    named = tuple(str(one["name"]) for one in members if "quarantine" in str(one["idle"]))
    final = [losses[step] for step in sorted(losses)[-last:]]
    return VerifiedRun(loss=statistics.mean(final), status=status, cause=cause, named=named)
