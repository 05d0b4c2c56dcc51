"""SIGKILL of helpers' processes in mid run: it goes on in the same attempt, to the weights of the plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farflung.chaos.local_cluster import LocalCluster, finished
from farflung.telemetry import RecoveryRecord, RunFolder
from farflung.wire.frames import Frame
from tests.support.runs.loopback import captured, plainly, same, text_folder, text_job
from tests.support.runs.watched_runs import watched


def until(frames: Iterator[Frame], told: Callable[[], bool]) -> None:
    """Follow the run until ``told`` holds, and two steps more."""
    more = 0
    for frame in frames:
        more += frame.kind == "record" and told()
        if more > 2:
            return
    pytest.fail("the run was over before that")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("delayed", [pytest.param(False, id="exact"), pytest.param(True, id="delayed", marks=pytest.mark.slow)])
def test_helpers_may_be_killed(tmp_path: Path, *, delayed: bool) -> None:
    """With a delayed update, too, where the next step's parameters are on their way to them."""
    text_folder(tmp_path)
    optimizer = {"name": "adamw", "lr": 1e-2, **({"clip_norm": 0.5, "delayed": True} if delayed else {})}
    job = text_job(steps=100_000, micro_batch_sizes=[1, 2, 1, 2], plan={"helpers": True}, workers=2, optimizer=optimizer)
    bundle = captured(job, tmp_path)
    with LocalCluster(tmp_path / "wild", ["a", "b"], data=tmp_path, unreliable=["u", "v"]) as wild:

        def log(text: str) -> int:
            return wild.log("broker").count(text)

        client = wild.client()
        try:
            root = Path(client.submit(bundle)["folder"])
            frames = iter(watched(client, bundle.run))
            until(frames, lambda: log("u helps ") > 0 and log("v helps ") > 0)
            wild.kill("u")
            until(frames, lambda: log("worker u is gone") > 0)
            before = log("u helps a with") + log("u helps b with")
            wild.restart("u")
            until(frames, lambda: log("u helps a with") + log("u helps b with") > before)
            wild.kill("u")
            wild.kill("v")
            until(frames, lambda: all(log(f"worker {name} is gone") == log(f"worker {name} joined") for name in "uv"))
            client.stop(bundle.run)
            for _ in frames:
                pass
        finally:
            client.close()
        over = finished(root)
    attempts = [record.cause for record in RunFolder(root).records() if isinstance(record, RecoveryRecord)]
    assert not [cause for cause in attempts if "worker u" in cause or "worker v" in cause], "a helper's death costs no attempt"
    assert set(over.plan.devices) <= {"a", "b"}
    assert [record.step for record in over.steps] == list(range(over.result.steps))
    module, _ = plainly(job.model_copy(update={"steps": over.result.steps}), tmp_path)
    held, tensors = over.states(), module.state_dict()
    assert held, "there are states to compare"
    assert same(held, {name: tensors[name].detach().numpy() for name in held}) == []
