"""What a broker knows, read when Prometheus asks: nothing is counted on the way of a step for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from prometheus_client.core import Metric

from farflung.broker.links.table import LinkTable
from farflung.broker.live_run import LiveRun
from farflung.broker.run_table import RunTable
from farflung.broker.session_table import SessionTable
from farflung.integrations.metrics.definitions import BROKER, MOST_LINKS, MOST_RUNS, MOST_STAGES, MOST_WORKERS, Values
from farflung.protocol.members import Member
from farflung.protocol.runs import RunState
from farflung.version import __version__

__all__ = ["BrokerCollector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCollector:
    """A collector of ``prometheus_client``. ``RunTable.changed`` is held while members and runs are copied."""

    runs: RunTable
    sessions: SessionTable
    links: LinkTable

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        values = Values(BROKER)
        values.add("build_info", 1.0, __version__)
        self._workers_and_runs(values)
        links = sorted(self.links.all().items())
        _leave_out(values, "links", len(links), MOST_LINKS)
        for (source, target), figures in links[:MOST_LINKS]:
            values.add("link_latency_seconds", figures.alpha, source, target)
            values.add("link_bytes_per_second", figures.beta, source, target)
        return values.families()

    def _workers_and_runs(self, values: Values) -> None:
        with self.runs.changed:
            machine = self.runs.machine
            live = [one for one in self.runs.all() if one.run in machine.runs]
            states = {one.run: machine.runs[one.run].state for one in live}
            members = [replace(member) for member in machine.members.values()]
        trains = {member.name: states.get(member.run or "") is RunState.RUNNING for member in members}
        for state, count in Counter(member.state(trains=trains[member.name]).value for member in members).items():
            values.add("workers", count, state)
        for state, count in Counter(state.value for state in states.values()).items():
            values.add("runs", count, state)
        _leave_out(values, "workers", len(members), MOST_WORKERS)
        for member in sorted(members, key=lambda one: one.name)[:MOST_WORKERS]:
            self._worker(values, member, trains=trains[member.name])
        _leave_out(values, "runs", len(live), MOST_RUNS)
        for one in live[-MOST_RUNS:]:
            _run(values, one)

    def _worker(self, values: Values, member: Member, *, trains: bool) -> None:
        found = {
            "worker_memory_bytes": member.offer.memory,
            "worker_flops_per_second": member.speed,
            "worker_training": trains,
            "worker_uptime_seconds": float(self.sessions.uptime(member.name)),
            "worker_silence_seconds": float(self.sessions.silence(member.name)),
        }
        values.add_all(found, member.name)


def _leave_out(values: Values, what: str, count: int, most: int) -> None:
    values.add("left_out", max(count - most, 0), what)


def _run(values: Values, live: LiveRun) -> None:
    latest, totals = live.records.latest, live.records.latest.totals
    step, evaluation = latest.step, latest.evaluation
    values.add("run_info", 1.0, live.run, live.job.name)
    found: dict[str, float | None] = {
        "run_step": live.attempt.first_step if step is None else step.step + 1,
        "run_target_steps": live.job.steps,
        "run_steps_total": totals.steps,
        "run_skipped_steps_total": totals.skipped,
        "run_samples_total": totals.samples,
        "run_tokens_total": totals.tokens,
        "run_sent_bytes_total": totals.sent_bytes,
        "run_recoveries_total": totals.recoveries,
        "run_evaluation_loss": None if evaluation is None else evaluation.loss,
    }
    if step is not None:
        found |= {
            "run_loss": step.loss,
            "run_learning_rate": step.learning_rate,
            "run_grad_norm": step.grad_norm,
            "run_divergence": step.divergence,
            "run_step_seconds": step.seconds,
            "run_predicted_step_seconds": step.predicted_seconds,
        }
        for stage, seconds in sorted(step.busy_seconds.items())[:MOST_STAGES]:
            values.add("stage_busy_seconds", seconds, live.run, str(stage))
    values.add_all(found, live.run)
