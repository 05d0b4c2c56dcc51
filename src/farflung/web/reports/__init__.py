"""Reports: reads a run's folder (telemetry, job, plan, graph, topology) and writes pages for people."""

from farflung.web.reports.report import compare_report, write_report
from farflung.web.reports.run import Run, load_run

__all__ = ["Run", "compare_report", "load_run", "write_report"]
