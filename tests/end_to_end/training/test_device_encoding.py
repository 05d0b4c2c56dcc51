"""A run whose engines encode what leaves them has the losses and the bytes of one whose sender threads encode."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from farflung.engines.base import Array
from farflung.engines.encoded_value import EncodedValue
from farflung.graph.cut import Edge
from farflung.step.transfer.value_transfer import StepRoutes
from tests.support.runs.loopback import Loopback, captured, text_job
from tests.support.runs.played_runs import play


def test_a_run_is_the_same_wherever_values_are_encoded(two: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bool] = []
    send = StepRoutes.send

    def counting(
        self: StepRoutes, micro_batch: int, results: Sequence[tuple[Edge, Array | EncodedValue]], *, gradient: bool
    ) -> None:
        sent.extend(isinstance(value, EncodedValue) for _, value in results)
        send(self, micro_batch, results, gradient=gradient)

    monkeypatch.setattr(StepRoutes, "send", counting)

    def steps(encoder: str) -> list[tuple[float, dict[str, int], set[str]]]:
        codec = {"name": "int4", "rounding": "stochastic", "rotate": True, "encoder": encoder}
        job = text_job(steps=4, micro_batch_sizes=[2, 3, 2, 1], codec=codec)
        end = play(two, captured(job, two.home), workers=2)
        assert (end.result.status, end.result.cause) == ("finished", "")
        lines = [json.loads(line) for line in (end.folder / "metrics.jsonl").read_text().splitlines()]
        return [(line["loss"], line["link_bytes"], set(line["codecs"])) for line in lines if line["kind"] == "step"]

    host, without = steps("host"), sent.copy()
    assert not any(without)
    assert steps("device") == host
    assert sum(sent) == len(without) > 0
