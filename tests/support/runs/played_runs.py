"""Runs of a submitted bundle, followed to their end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farflung.ids import new_id
from farflung.messages.submission import Bundle
from farflung.telemetry.records import RunResult
from farflung.wire.frames import Frame
from tests.support.runs.loopback import Loopback
from tests.support.runs.watched_runs import watched

PATIENCE = 60.0


@dataclass
class End:
    run: str
    folder: Path
    kind: str
    result: RunResult
    frames: list[Frame]

    @property
    def kinds(self) -> list[str]:
        return [frame.kind for frame in self.frames]


def renamed(bundle: Bundle, cluster: Loopback, changes: Mapping[str, Any]) -> Bundle:
    job = bundle.job.model_copy(update={"workers": len(cluster.workers), **changes})
    return replace(bundle, run=new_id("run"), job=job)


def play(cluster: Loopback, bundle: Bundle, on: str = "", act: Any = None, **changes: Any) -> End:
    """Submit and follow to the end; at the first frame of kind ``on``, ``act(run)`` happens."""
    bundle = renamed(bundle, cluster, changes)
    folder = Path(cluster.client.submit(bundle)["folder"])
    frames: list[Frame] = []
    for frame in watched(cluster.client, bundle.run):
        frames.append(frame)
        if frame.kind == on and act is not None:
            act(bundle.run)
            act = None
    header = frames[-1].header
    return End(bundle.run, folder, header["kind"], RunResult.from_json(header["result"]), frames)
