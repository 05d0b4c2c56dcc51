"""Reports: reads a run's folder (telemetry, job, plan, graph, topology) and writes pages for people.

- ``run``: reads a folder. ``report``: the page of a run, or of several. ``page``, ``markdown``, ``tables``: its parts.
- ``plots``, ``time_chart``, ``plan_map``: drawings. ``scene``, ``drawing``, ``ink``: what drawings consist of.
"""

from farflung.web.reports.report import compare_report, write_report
from farflung.web.reports.run import Run, load_run

__all__ = ["Run", "compare_report", "load_run", "write_report"]
