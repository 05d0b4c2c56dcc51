"""What ``farflung status`` shows of one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farflung.broker.live_run import LiveRun
from farflung.protocol.broker import Run, RunState
from farflung.units import Seconds

__all__ = ["PRIVATE", "run_status"]

#: Shown in place of the true values to clients that do not own the run.
PRIVATE: dict[str, Any] = {"cause": "", "loss": None, "evaluation": None, "checkpoint": "", "folder": ""}


def run_status(live: LiveRun, run: Run, *, ahead: int, slow: Sequence[str], checkpoint: str, now: Seconds) -> dict[str, Any]:
    """Return the status of a run as a JSON object.

    ``ahead``: runs that are queued before this one. ``checkpoint``: the path of the newest checkpoint ("": there is none).
    ``now``: the monotonic clock, in seconds.
    """
    last, evaluation, result = live.records.latest.step, live.records.latest.evaluation, live.result
    training = 0.0 if live.times.started is None else float(now) - live.times.started
    return {
        "run": live.run,
        "job": live.job.name,
        "state": "stopping" if run.stopping and not run.state.over else run.state.value,
        "cause": run.cause or ("" if run.state is RunState.RUNNING or run.state.over else live.times.lost),
        "ahead": ahead,
        "needs": run.needs,
        "recoveries": max(live.attempt.number - 1, live.times.begun - 1, 0),
        "slow": list(slow) if run.state is RunState.RUNNING else [],
        "devices": list(run.devices),
        "divided": [] if live.running is None else [one.index for one in live.running.stages if one.shard == "parameters"],
        "together": [] if live.running is None else [one.index for one in live.running.stages if one.shard == "tensor"],
        "step": _steps(live),
        "steps": live.job.steps,
        "loss": None if last is None else last.loss,
        "evaluation": None if evaluation is None else {"step": evaluation.step, "loss": evaluation.loss},
        "seconds": training if result is None else result.seconds,
        "checkpoint": checkpoint,
        "folder": str(live.store.root),
    }


def _steps(live: LiveRun) -> int:
    if live.records.latest.step is not None:
        return live.records.latest.step.step + 1
    return live.attempt.first_step if live.result is None else live.result.steps
