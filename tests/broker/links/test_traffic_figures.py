"""Keeping the table of links fresh: what workers tell of their links, weighed against what is known."""

from __future__ import annotations

from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.broker.links.traffic_figures import update_from_traffic
from farflung.messages.conversions.link_reports import LinkReport, link_items, links_of
from farflung.transports.base import LinkStatistics
from farflung.units import Seconds


def _known(beta: float = 1e6, relay: str = "") -> LinkTable:
    table = LinkTable()
    table.put("a", "b", LinkFigures(alpha=0.02, beta=beta, relay=relay))
    return table


def test_what_was_seen_alone_replaces_the_probe() -> None:
    table = _known()
    fresh = update_from_traffic(table, "a", {"b": LinkReport(alpha=0.03, beta=0.5e6)})
    assert fresh == {("a", "b"): LinkFigures(alpha=0.03, beta=0.5e6, source="training")}
    assert table.get("a", "b") == fresh["a", "b"]
    assert table.get("b", "a") is None


def test_what_was_seen_in_company_only_raises() -> None:
    table = _known()
    assert update_from_traffic(table, "a", {"b": LinkReport(alpha=0.02, least=0.4e6)}) == {}
    assert update_from_traffic(table, "a", {"b": LinkReport(alpha=0.02, least=1.04e6)}) == {}
    found = update_from_traffic(table, "a", {"b": LinkReport(alpha=0.02, beta=1.1e6, least=2e6)})["a", "b"]
    assert (found.beta, found.source) == (2e6, "training")


def test_a_link_that_nobody_probed_gets_figures_of_its_own() -> None:
    table = LinkTable()
    assert update_from_traffic(table, "a", {"b": LinkReport(alpha=0.02, least=1e6)}) == {}  # others may have shared the line
    assert update_from_traffic(table, "a", {"b": LinkReport(alpha=0.02, beta=2e6)})["a", "b"].beta == 2e6


def test_latency_is_renewed_where_traffic_tells_no_rate() -> None:
    table = _known()
    found = update_from_traffic(table, "a", {"b": LinkReport(alpha=0.05, least=0.1e6)})["a", "b"]
    assert found == LinkFigures(alpha=0.05, beta=1e6, source="probe")


def test_small_changes_are_no_news() -> None:
    table = _known()
    assert update_from_traffic(table, "a", {"b": LinkReport(alpha=0.02, beta=1e6)})
    assert update_from_traffic(table, "a", {"b": LinkReport(alpha=0.0201, beta=1.005e6)}) == {}


def test_figures_of_a_relay_belong_to_it() -> None:
    table = _known(relay="r")
    assert update_from_traffic(table, "a", {"b": LinkReport(alpha=0.01, beta=9e6)}, lambda peer: "r") == {}  # it went directly
    found = update_from_traffic(table, "a", {"b": LinkReport(alpha=0.03, beta=3e6, relay="r")}, lambda peer: "r")["a", "b"]
    assert (found.beta, found.relay) == (3e6, "r")
    assert update_from_traffic(table, "a", {"b": LinkReport(alpha=0.01, beta=9e6)})["a", "b"].relay == ""


def test_what_is_told_comes_back_and_unknown_links_are_left_out() -> None:
    seen = {
        "b": LinkStatistics(alpha=Seconds(0.02), beta=1e6, least=2e6, relay="r"),
        "c": LinkStatistics(alpha=Seconds(0.02)),
        "d": LinkStatistics(alpha=Seconds(0.01), least=3e6),
    }
    told = links_of(link_items(seen))
    assert told == {"b": LinkReport(alpha=0.02, beta=1e6, least=2e6, relay="r"), "d": LinkReport(alpha=0.01, least=3e6)}
