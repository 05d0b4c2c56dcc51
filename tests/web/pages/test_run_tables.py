"""Tables and sentences of the page of a run."""

from __future__ import annotations

from farflung.web.pages.run_tables import bottleneck
from farflung.web.sources.run_analysis import Analysis


def test_the_bottleneck_is_what_helps_most_and_not_what_is_busiest() -> None:
    gains = (("computing twice as fast on w-b (stage 1)", 0.5, 1.19), ("computing twice as fast on w-a (stage 0)", 0.51, 1.17))
    text = bottleneck(Analysis(bound_by="computing on w-a", bound_share=0.7, seconds=0.6, gains=gains, memory="m"))
    first = text.partition("</p>")[0]
    assert "Largest gain: <b>computing twice as fast on w-b (stage 1)</b>. Busiest: " in first
    assert "Busiest: computing on w-a, for 70% of the predicted step." in first


def test_without_a_remedy_the_busiest_is_named() -> None:
    text = bottleneck(Analysis(bound_by="computing on w-a", bound_share=0.4, seconds=0.6, memory="m"))
    assert "No single machine or link at twice the speed would shorten the step. Busiest: computing on w-a" in text
