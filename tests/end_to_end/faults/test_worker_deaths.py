"""Workers that go in mid run: the run goes on without them, and its weights are those of a run that nobody left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.api import train
from farflung.checkpoint import CheckpointStore
from farflung.job import JobSpec
from farflung.telemetry import injecting
from tests.support.network.quiet import until
from tests.support.runs.loopback import Finished, Loopback, same, text_folder, text_job
from tests.support.runs.worker_deaths import STEPS, at, cut, equal, recoveries_of, vanish


def job(**changes: object) -> JobSpec:
    return text_job(**{"steps": STEPS, "checkpoint": {"every": 3, "keep": 9}, "copies": 0, **changes})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recovery")
    text_folder(folder)
    return folder


@pytest.fixture(scope="module")
def truth(place: Path) -> Finished:
    with Loopback(place, 3, folder="undisturbed") as cluster:
        return cluster.run(job(evaluate={"every": 3, "batches": 2}))


def leave(cluster: Loopback) -> None:
    """Its owner ends b's process; called by the thread that computes, which gets no further before the broker knows."""
    threading.Thread(target=cluster.workers.pop("b").stop).start()
    until(lambda: not cluster.broker.sessions.serves("b"))


@pytest.mark.parametrize(
    ("point", "step", "act"),
    [
        ("worker.before_forward", 1, lambda cluster: vanish(cluster, "b")),
        ("worker.before_backward", 7, lambda cluster: vanish(cluster, "b")),
        ("worker.before_update", 7, lambda cluster: vanish(cluster, "b")),
        ("worker.after_update", 7, lambda cluster: vanish(cluster, "b")),
        ("checkpoint.before_shard", 6, lambda cluster: vanish(cluster, "b")),
        ("checkpoint.before_shard", STEPS, lambda cluster: vanish(cluster, "b")),
        ("worker.before_backward", 7, leave),
        ("worker.before_backward", 7, cut),
    ],
    ids=["no-checkpoint", "backward", "before-update", "after-update", "checkpoint", "last-checkpoint", "leaves", "link"],
)
def test_the_others_go_on_bit_for_bit(
    place: Path, tmp_path: Path, truth: Finished, point: str, step: int, act: Callable[[Loopback], None]
) -> None:
    with Loopback(place, 3, folder=str(tmp_path)) as cluster:
        with injecting(at(point, step, "b", lambda: act(cluster))):
            found = cluster.run(job(evaluate={"every": 3, "batches": 2}), anybody=True)
        equal(truth, found)
        recoveries = recoveries_of(found)
        assert recoveries
        last = recoveries[-1]
        if act is cut:
            assert (last.step, last.source, last.replayed, last.moved) == (7, "memory", 0, 0), "all hold what they had"
        else:
            whole = (step - 1) // 3 * 3 if "checkpoint" in point else step // 3 * 3
            assert (last.step, last.source) == (whole, "checkpoint" if whole else "start"), "nobody holds what b had"
        assert set(last.devices) == ({"a", "b", "c"} if act is cut else {"a", "c"})
        notes = [frame.header["text"] for frame in found.frames if frame.kind == "note"]
        assert any(text.endswith("; the broker makes a new plan") for text in notes)
        if last.source == "checkpoint":
            assert f", from the checkpoint after step {last.step}; " in str(last)
        runs = cluster.client.status()["runs"]
        assert isinstance(runs, list)
        assert [run["recoveries"] > 0 for run in runs if run["run"] == found.run] == [True]


class Net(nn.Module):
    """Three layers: enough for three workers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.layers(x), y)


def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(100 * step + micro_batch)
    return torch.randn(4, 8, generator=made), torch.randint(0, 4, (4,), generator=made)


def test_the_caller_feeds_the_replayed_steps_again(place: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, told = Net(), list[int]()
    truth = train(module, batch, steps=6, micro_batches=2, optimizer="adamw", workers=1)
    with Loopback(place, 3, folder=str(tmp_path)) as cluster:
        ticket = str(cluster.ticket("submit"))
        with injecting(at("worker.before_backward", 4, "b", lambda: vanish(cluster, "b"))):
            found = train(
                module, batch, steps=6, micro_batches=2, optimizer="adamw", ticket=ticket, on_step=lambda r: told.append(r.step)
            )
    assert found.plan.devices == ("a", "c")
    assert found.losses == truth.losses
    assert told == list(range(6)), "each step is told once"
    assert same(truth.state_dict(), found.state_dict()) == []


def test_a_worker_that_comes_while_the_run_waits_is_used(place: Path, tmp_path: Path, truth: Finished) -> None:
    with Loopback(place, 3, folder=str(tmp_path)) as cluster:
        joined: list[threading.Thread] = []

        def lose() -> None:
            vanish(cluster, "b")
            joined.append(threading.Thread(target=cluster.add, args=("d",)))
            joined[0].start()

        with injecting(at("worker.before_update", 7, "b", lose)):
            found = cluster.run(job(evaluate={"every": 3, "batches": 2}, workers=3))
        joined[0].join()
        equal(truth, found)
        assert set(recoveries_of(found)[-1].devices) == {"a", "c", "d"}


def test_checkpoints_to_recover_from_come_by_the_clock(place: Path, tmp_path: Path, truth: Finished) -> None:
    checkpoint = {"every": 6, "keep": 1, "recover_every": 1e-9}
    with Loopback(place, 3, folder=str(tmp_path)) as cluster:
        with injecting(at("worker.before_update", 5, "b", lambda: vanish(cluster, "b"))):
            found = cluster.run(job(evaluate={"every": 3, "batches": 2}, checkpoint=checkpoint), anybody=True)
        equal(truth, found)
        assert recoveries_of(found)[0].step > 0, "there was one before the first of checkpoint.every"
        assert [step for step in CheckpointStore(found.folder / "checkpoints").steps() if step % 6] == [], "and they are gone"


def test_on_loss_stop_ends_the_run(place: Path, tmp_path: Path) -> None:
    with Loopback(place, 2, folder=str(tmp_path)) as cluster:
        with injecting(at("worker.before_update", 7, "b", lambda: vanish(cluster, "b"))):
            found = cluster.run(job(on_loss="stop"))
        assert found.result.status == "failed"
        assert "b" in found.result.cause
        assert found.reader().manifest.step == 6
