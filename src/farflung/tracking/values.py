"""Records of a run as values of a tracker, under the names that users of trackers expect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

from farflung.errors import FarflungError
from farflung.job import JobSpec
from farflung.plan.model import Plan
from farflung.telemetry.folder import RunFolder
from farflung.telemetry.records import EvaluationRecord, RecoveryRecord, StepRecord
from farflung.tracking.base import Setting
from farflung.version import __version__

__all__ = ["VALUES", "evaluation_values", "recovery_values", "settings_of", "step_values"]

#: Name -> what it is; the table of docs/trackers.md.
VALUES = {
    "train/loss": "mean loss over the micro-batches of the step",
    "train/learning_rate": "learning rate of the default group",
    "train/grad_norm": "norm of all gradients before clipping, where the job computes one (`optimizer.clip_norm`, `on_nan`)",
    "train/samples_per_second": "samples of the step over its time",
    "train/tokens_per_second": "tokens of the step over its time, for text",
    "train/skipped": "1 for a step that was not applied because of a loss that is not a number",
    "train/divergence": "largest relative distance of a replica's weights from the mean, under a sync strategy",
    "time/step_seconds": "measured time of the step",
    "time/predicted_step_seconds": "time of the step as the plan predicts it",
    "time/elapsed_seconds": "time since training began",
    "network/sent_bytes": "bytes on all links in the step",
    "network/dense_bytes": "bytes that would have been sent without codecs",
    "eval/loss": "mean loss of the evaluation",
    "eval/perplexity": "exponential of that loss, for text",
    "eval/accuracy": "right answers, 0 to 1, where the model counts them",
    "events/recoveries": "losses of workers from which the run has recovered",
    "events/recovery_seconds": "time from the loss until training continued",
    "events/repeated_steps": "steps that were repeated after a loss",
}


def step_values(record: StepRecord) -> dict[str, float]:
    """Return the values of a training step."""
    known: dict[str, float | None] = {
        "train/loss": record.loss,
        "train/learning_rate": record.learning_rate,
        "train/grad_norm": record.grad_norm,
        "train/samples_per_second": record.samples_per_second,
        "train/tokens_per_second": record.tokens / record.seconds if record.tokens and record.seconds > 0 else None,
        "train/skipped": 1.0 if record.skipped else None,
        "train/divergence": record.divergence,
        "time/step_seconds": record.seconds,
        "time/predicted_step_seconds": record.predicted_seconds,
        "time/elapsed_seconds": record.elapsed,
        "network/sent_bytes": float(record.total_bytes) if record.link_bytes else None,
        "network/dense_bytes": float(sum(record.dense_bytes.values())) if record.dense_bytes else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def evaluation_values(record: EvaluationRecord) -> dict[str, float]:
    """Return the values of an evaluation."""
    known = {"eval/loss": record.loss, "eval/perplexity": record.perplexity, "eval/accuracy": record.accuracy}
    known |= {f"eval/{name}": value for name, value in record.metrics.items()}
    return {name: value for name, value in known.items() if value is not None}


def recovery_values(record: RecoveryRecord) -> dict[str, float]:
    """Return the values of a recovery; the first one belongs to the second attempt."""
    return {
        "events/recoveries": float(record.attempt - 1),
        "events/recovery_seconds": record.pause,
        "events/repeated_steps": float(record.replayed),
    }


def settings_of(job: JobSpec, folder: RunFolder) -> dict[str, Setting]:
    """Return the settings of a run by dotted names: the job, and what its newest plan decided (nothing: there is no plan yet)."""
    found: dict[str, Setting] = {"farflung": __version__}
    found |= dict(_flat("job.", job.model_dump(mode="json", exclude={"report"})))
    with suppress(OSError, UnicodeDecodeError, FarflungError):
        plan = Plan.from_json(folder.plan.read_text(encoding="utf-8"))
        found |= {
            "plan.planner": plan.planner,
            "plan.schedule": plan.schedule,
            "plan.stages": len(plan.stages),
            "plan.machines": ", ".join(plan.devices),
            "plan.replicas": max((len(stage.devices) for stage in plan.stages), default=0),
            "plan.codecs": ", ".join(sorted({str(codec) for link in plan.links for codec in (link.activations, link.gradients)})),
            "plan.sync": "exact" if plan.sync is None else plan.sync.strategy,
        }
    return found


def _flat(prefix: str, table: Mapping[str, object]) -> Iterator[tuple[str, Setting]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{key}.", value)
        elif isinstance(value, (bool, int, float, str)):
            yield f"{prefix}{key}", value
        elif value is not None:
            yield f"{prefix}{key}", json.dumps(value)
