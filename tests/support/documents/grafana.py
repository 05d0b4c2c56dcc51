"""The Grafana dashboard of the repository."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["expressions"]

DASHBOARD = Path(__file__).resolve().parents[3] / "examples/grafana/farflung.json"


def expressions() -> list[str]:
    """What it asks Prometheus."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return panels + [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
