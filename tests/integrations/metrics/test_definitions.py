"""The documentation and the Grafana dashboard name the metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")

from farflung.integrations.metrics.definitions import BROKER, WORKER, Values, page_table
from tests.support.documents.grafana import expressions

ROOT = Path(__file__).resolve().parents[3]
NAMES = {one.name: one for one in (*BROKER, *WORKER)}


def test_the_page_has_the_tables() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert page_table(BROKER) in page
    assert page_table(WORKER) in page


def test_the_dashboard_names_metrics_and_labels_that_exist() -> None:
    assert len(expressions()) > 20
    for expression in expressions():
        names = re.findall(r"\bfarflung_\w+", expression)
        assert names, expression
        assert set(names) <= set(NAMES), expression
        for name, labels in re.findall(r"(farflung_\w+)\{([^}]*)\}", expression):
            assert {label.partition("=")[0] for label in labels.split(",")} <= set(NAMES[name].labels), expression
        if "rate(" in expression:
            assert all(NAMES[name].kind == "counter" for name in names), expression


def test_legends_use_labels_of_their_metrics() -> None:
    dashboard = json.loads((ROOT / "examples/grafana/farflung.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            (first, *_) = re.findall(r"\bfarflung_\w+", target["expr"])
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - {"instance"}
            assert used <= set(NAMES[first].labels), target


def test_a_value_of_an_undefined_metric_is_a_defect() -> None:
    values = Values(BROKER)
    values.add("nothing_like_it", 1.0)
    with pytest.raises(KeyError):
        list(values.families())
