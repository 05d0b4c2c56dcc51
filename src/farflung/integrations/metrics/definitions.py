"""The Prometheus metrics of brokers and workers: names, types, labels. ``docs/metrics.md`` is this table.

Labels have a bounded number of values: a broker shows its newest runs and at most so many workers and links, a worker at most so
many peers. What is beyond is left out and counted in ``farflung_left_out``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

__all__ = ["BROKER", "MOST_LINKS", "MOST_RUNS", "MOST_STAGES", "MOST_WORKERS", "WORKER", "Definition", "Values", "page_table"]

#: How many values labels may have at one broker or worker.
MOST_RUNS, MOST_WORKERS, MOST_LINKS, MOST_STAGES = 16, 256, 1024, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One metric. A counter's name ends with ``_total``."""

    name: str
    about: str
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """Its type."""
        return "counter" if self.name.endswith("_total") else "gauge"


def _all(labels: tuple[str, ...], **about: str) -> tuple[Definition, ...]:
    return tuple(Definition(name=f"farflung_{name}", about=text, labels=labels) for name, text in about.items())


_BOTH = (
    *_all(("version",), build_info="Version of farflung; the value is 1."),
    *_all(("what",), left_out="Runs, workers, links or peers beyond the number that is shown."),
)

BROKER = (
    *_BOTH,
    *_all(
        ("state",),
        workers="Workers by state.",
        runs="Runs in the memory of the broker by state.",
    ),
    *_all(
        ("worker",),
        worker_memory_bytes="Memory that a worker offers.",
        worker_flops_per_second="Measured speed of a worker.",
        worker_training="1 while a worker trains, otherwise 0.",
        worker_uptime_seconds="Time since the session of a worker began.",
        worker_silence_seconds="Time since the last message of a worker.",
    ),
    *_all(("run", "job"), run_info="A run and the name of its job; the value is 1."),
    *_all(
        ("run",),
        run_step="Steps of a run that count.",
        run_target_steps="Steps of the job.",
        run_steps_total="Steps that were made, including repeated ones.",
        run_skipped_steps_total="Steps that were not applied because of a loss that is not a number.",
        run_samples_total="Samples of all steps.",
        run_tokens_total="Tokens of all steps, for text.",
        run_sent_bytes_total="Payload bytes on the links of a run.",
        run_recoveries_total="Losses of workers from which a run has recovered.",
        run_loss="Loss of the newest step.",
        run_evaluation_loss="Loss of the newest evaluation.",
        run_learning_rate="Learning rate of the newest step.",
        run_grad_norm="Norm of all gradients of the newest step, where the job computes one.",
        run_divergence="Largest relative distance of a replica from the mean, under a sync strategy.",
        run_step_seconds="Time of the newest step.",
        run_predicted_step_seconds="Time of a step as the plan predicts it.",
    ),
    *_all(("run", "stage"), stage_busy_seconds="Computing time of a stage in the newest step."),
    *_all(
        ("source", "target"),
        link_latency_seconds="Measured latency of a link, one way.",
        link_bytes_per_second="Measured bandwidth of a link.",
    ),
)

WORKER = (
    *_BOTH,
    *_all(("worker",), joined="1 while the worker has a session with its broker, otherwise 0."),
    *_all(
        (),
        steps_total="Steps in which the worker took part.",
        compute_seconds_total="Time that the worker computed in these steps.",
        wait_seconds_total="Time that the worker waited for data in these steps.",
    ),
    *_all(
        ("peer",),
        peer_sent_bytes_total="Bytes of frames that were sent to a peer.",
        peer_received_bytes_total="Bytes of frames that came from a peer.",
        peer_repeated_bytes_total="Bytes that were sent again because a connection broke.",
        peer_busy_seconds_total="Time during which a frame to a peer was on its way.",
        peer_connections="Connections to a peer.",
        peer_round_trip_seconds="Round-trip time of the connection to a peer.",
    ),
)


@dataclass(slots=True)
class Values:
    """Collects the values of one scrape. A metric without a value is left out of the answer."""

    definitions: tuple[Definition, ...]
    _found: dict[str, list[tuple[tuple[str, ...], float]]] = field(default_factory=dict)

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a value of the metric ``farflung_NAME`` (None: there is none)."""
        if value is not None:
            self._found.setdefault(f"farflung_{name}", []).append((labels, float(value)))

    def add_all(self, values: Mapping[str, float | None], *labels: str) -> None:
        """Add a value of each metric of ``values``, with the same labels."""
        for name, value in values.items():
            self.add(name, value, *labels)

    def families(self) -> Iterable[Metric]:
        """Return the metrics as ``prometheus_client`` takes them.

        Raises:
            KeyError: there is a value of a metric that is not defined.
        """
        known = {one.name: one for one in self.definitions}
        for name, values in self._found.items():
            definition = known[name]
            make = CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily
            family = make(name, definition.about, labels=definition.labels)
            for labels, value in values:
                family.add_metric(labels, value)
            yield family


def page_table(definitions: Iterable[Definition]) -> str:
    """Return the table of ``docs/metrics.md``."""
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.about} |" for one in definitions
    ]
    return "\n".join(["| metric | type | labels | value |", "| --- | --- | --- | --- |", *rows])
