"""What a worker knows of itself, read when Prometheus asks; only sums of times are counted during a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from farflung.integrations.metrics.definitions import MOST_WORKERS, WORKER, Values
from farflung.messages.conversions.step_reports import StepReport
from farflung.telemetry.trace import Span
from farflung.transports.base import LinkStatistics
from farflung.version import __version__

__all__ = ["StepTotals", "WorkerCollector"]


class StepTotals:
    """Sums over the steps of this process; implements ``WorkObserver``. The compute thread adds, other threads read."""

    def __init__(self) -> None:
        self.steps = 0
        self.compute_seconds = self.wait_seconds = 0.0

    def step(self, run: str, report: StepReport) -> None:
        """Add a step."""
        del run
        self.steps += 1
        self.compute_seconds += report.busy
        self.wait_seconds += report.wait

    def spans(self, run: str, spans: Sequence[Span]) -> None:
        """Spans are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCollector:
    """A collector of ``prometheus_client``. ``links`` returns the traffic with each peer (None: there is no session)."""

    name: str
    totals: StepTotals
    links: Callable[[], Mapping[str, LinkStatistics] | None]

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        values, links = Values(WORKER), self.links()
        values.add("build_info", 1.0, __version__)
        values.add("joined", links is not None, self.name)
        values.add("steps_total", self.totals.steps)
        values.add("compute_seconds_total", self.totals.compute_seconds)
        values.add("wait_seconds_total", self.totals.wait_seconds)
        peers = sorted((links or {}).items())
        values.add("left_out", max(len(peers) - MOST_WORKERS, 0), "peers")
        for peer, found in peers[:MOST_WORKERS]:
            values.add("peer_sent_bytes_total", found.bytes_sent, peer)
            values.add("peer_received_bytes_total", found.bytes_received, peer)
            values.add("peer_repeated_bytes_total", found.repeated, peer)
            values.add("peer_busy_seconds_total", float(found.busy_seconds), peer)
            values.add("peer_connections", found.connections, peer)
            values.add("peer_round_trip_seconds", float(found.round_trip) or None, peer)
        return values.families()
