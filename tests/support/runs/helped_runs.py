"""Runs with helpers on workers of this process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from farflung.job import JobSpec
from farflung.step.hybrid.stage_server import StageServer
from farflung.telemetry.records import RecoveryRecord, read_record
from tests.support.runs.loopback import Finished, Loopback, plainly, same, states_of, text_job

JOB = text_job(steps=6, micro_batch_sizes=[2, 1, 2, 1], plan={"helpers": True})
CLIPPED = {"name": "adamw", "lr": 1e-2, "delayed": True, "clip_norm": 0.5}


class Scene:
    """Servers wait before the first forward of step 1 until a helper is with them; then ``act`` is told of helpers' points."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here: dict[str, threading.Event] = {name: threading.Event() for name in "ab"}
        self.seen: list[tuple[str, str]] = []
        #: Servers wait for it before the first forward of step 3.
        self.awaited: threading.Event | None = None
        came = StageServer.came

        def arrive(self_: StageServer, name: str, stage: int, speed: float, *, fed: bool) -> None:
            came(self_, name, stage, speed, fed=fed)
            self.here[self_.context.setup.device].set()

        monkeypatch.setattr(StageServer, "came", arrive)

    def __call__(self, name: str, facts: Mapping[str, int | str]) -> None:
        if name == "worker.before_forward" and facts["step"] == 1:
            self.here[str(facts["device"])].wait()
        if name == "worker.before_forward" and facts["step"] == 3 and self.awaited is not None:
            self.awaited.wait()
        if name.startswith("helper."):
            self.seen.append((name, str(facts["device"])))
            self.act(name, str(facts["device"]))

    def act(self, name: str, device: str) -> None:
        """What befalls the helper ``device``."""


def helped(
    home: Path, job: JobSpec = JOB, helpers: str = "uv", over: threading.Event | None = None
) -> tuple[Finished, list[str]]:
    """The run on two reliable workers and these unreliable ones, and what the helpers said. ``over`` is set after the run."""
    with Loopback(home, 2) as cluster:
        for name in helpers:
            cluster.add(name, reliable=False)
        try:
            found = cluster.run(job.model_copy(update={"workers": 2}))
        finally:
            if over is not None:
                over.set()
        return found, [line for name in helpers for line in cluster.said[name]]


def check(home: Path, found: Finished, job: JobSpec = JOB) -> None:
    """It is the plain loop's result, bit for bit, in one attempt."""
    assert found.result.status == "finished", found.result.cause
    assert set(found.devices) == {"a", "b"}, "helpers have no part in the plan"
    assert recoveries(found) == [], "what befalls a helper costs no attempt"
    module, _ = plainly(job, home)
    held, tensors = states_of(found), module.state_dict()
    assert held, "there are states to compare"
    assert same(held, {name: tensors[name].detach().numpy() for name in held}) == []


def recoveries(finished: Finished) -> list[RecoveryRecord]:
    lines = [str(frame.header["line"]) for frame in finished.frames if frame.kind == "record"]
    return [record for record in map(read_record, lines) if isinstance(record, RecoveryRecord)]
