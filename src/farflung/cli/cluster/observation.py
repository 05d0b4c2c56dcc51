"""``--metrics`` of ``broker`` and ``join``, and OpenTelemetry traces by the variables of the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from farflung.extras import require_metrics, wants_traces

if TYPE_CHECKING:
    from farflung.broker.process import Broker
    from farflung.integrations.open_telemetry import TraceExporter
    from farflung.messages.conversions.step_reports import StepReport
    from farflung.telemetry.trace import Span
    from farflung.worker.observer import WorkObserver
    from farflung.worker.reconnect import Service

__all__ = ["WorkerObservation", "observed_broker"]

Say = Callable[[str], None]


def _open_traces(service: str, name: str, say: Say) -> TraceExporter | None:
    """Return an exporter if the environment asks for one. Its module loads most of farflung, and a worker registers first."""
    if not wants_traces():
        return None
    from farflung.integrations.open_telemetry import open_exporter

    traces = open_exporter(service, name, say)
    if traces is not None:
        say("traces are exported to OTEL_EXPORTER_OTLP_ENDPOINT")
    return traces


@contextmanager
def observed_broker(broker: Broker, metrics: str | None, say: Say) -> Iterator[None]:
    """Serve the metrics of ``broker`` at the address ``metrics`` (None: at none), and export traces, during the block.

    Raises:
        InputError: the address can't be listened at, or the library is not installed.
    """
    with ExitStack() as stack:
        if metrics is not None:
            require_metrics()
            from farflung.integrations.metrics.broker import BrokerCollector
            from farflung.integrations.metrics.server import MetricsServer

            collector = BrokerCollector(runs=broker.runs, sessions=broker.sessions, links=broker.network.table)
            server = stack.enter_context(MetricsServer(metrics, collector))
            say(f"metrics for Prometheus: http://{server.address}/metrics")
        if (traces := _open_traces("farflung-broker", broker.address, say)) is not None:
            stack.callback(traces.close)
            stack.callback(broker.observe(traces.message))
        yield


class WorkerObservation:
    """What observes a worker; implements ``WorkObserver``. ``close`` ends it."""

    def __init__(self, name: str, metrics: str | None, say: Say) -> None:
        """Begin to export traces, if the environment asks for them.

        Raises:
            InputError: the library for ``metrics`` is not installed.
        """
        self._name, self._metrics, self._say = name, metrics, say
        self._closing = ExitStack()
        self._observers: list[WorkObserver] = []
        if metrics is not None:
            require_metrics()
            from farflung.integrations.metrics.worker import StepTotals

            self._totals = StepTotals()
            self._observers.append(self._totals)
        if (traces := _open_traces("farflung-worker", name, say)) is not None:
            self._closing.callback(traces.close)
            self._observers.append(traces)

    def serve(self, service: Service) -> None:
        """Serve the metrics of ``service``.

        Raises:
            InputError: the address can't be listened at.
        """
        if self._metrics is None:
            return
        from farflung.integrations.metrics.server import MetricsServer
        from farflung.integrations.metrics.worker import WorkerCollector

        collector = WorkerCollector(name=self._name, totals=self._totals, links=service.links)
        server = self._closing.enter_context(MetricsServer(self._metrics, collector))
        self._say(f"metrics for Prometheus: http://{server.address}/metrics")

    def step(self, run: str, report: StepReport) -> None:
        """See ``WorkObserver``."""
        for one in self._observers:
            one.step(run, report)

    def spans(self, run: str, spans: Sequence[Span]) -> None:
        """See ``WorkObserver``."""
        for one in self._observers:
            one.spans(run, spans)

    def close(self) -> None:
        """End the server and the export."""
        self._closing.close()
