"""A broker and a worker that lack what a job names end the run and say who lacks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.broker.attempts import planner
from farflung.errors import FarflungError
from farflung.registry import Registry
from farflung.step import plugin_check as brought
from tests.support.runs.loopback import Loopback, text_job


def refusal(home: Path) -> str:
    with Loopback(home, 1) as cluster:
        try:
            return cluster.run(text_job()).result.cause
        except FarflungError as error:
            return str(error)


def test_both_name_themselves(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = r"can't take part: unknown codec 'identity': none is installed; a plug-in must be installed on the broker and on each"
    monkeypatch.setattr(brought, "CODECS", Registry("codec", "test_codecs"))
    assert f"the broker {lacks}" in refusal(home)
    monkeypatch.setattr(planner, "check_plugins", lambda job, who, *, plans: None)
    text = refusal(home)
    assert f" {lacks}" in text
    assert "worker " in text.partition("can't take part")[0]


def test_a_codec_with_parameters_in_its_name_is_what_links_send(home: Path) -> None:
    def sent(codec: dict[str, object]) -> int:
        with Loopback(home, 2) as cluster:
            found = cluster.run(text_job(steps=2, plan={"planner": "equal_number"}, codec=codec))
        assert found.result.status == "finished", found.result.cause
        return sum(sum(record.link_bytes.values()) for record in found.steps)

    assert sent({"name": "topk:ratio=8,values=int8"}) == sent({"name": "topk", "ratio": 8.0, "values": "int8"})
