"""The map of machines and links: places, and figures beside links."""

from __future__ import annotations

from itertools import permutations
from math import dist

from farflung.web.pages.link_map import link_map, places
from farflung.web.sources.broker_poll import LinkRow

LINK = LinkRow(source="a", target="b", alpha=0.02, beta=1e6, measured_by="probe")


def test_two_machines_stand_beside_each_other() -> None:
    (x, y), (other, height) = places(["a", "b"], {}).values()
    assert x < 0 < other
    assert abs(y) == abs(height) == 0


def test_machines_of_a_region_stand_together_and_far_enough_apart_for_figures() -> None:
    few = places(["tokyo", "oslo", "lyon"], {"tokyo": "asia", "oslo": "europe", "lyon": "europe"})
    assert list(few) == ["tokyo", "lyon", "oslo"]
    assert min(dist(*pair) for pair in permutations(few.values(), 2)) > 700
    names = [f"{region}{number}" for number in range(6) for region in "ab"]
    many = places(names, {name: name[0] for name in names})
    inside = [dist(many[one], many[other]) for one, other in permutations(names, 2) if one[0] == other[0]]
    across = [dist(many[one], many[other]) for one, other in permutations(names, 2) if one[0] != other[0]]
    assert max(inside) < max(across)


def test_few_links_have_their_figures_on_the_map() -> None:
    option = link_map(["a", "b{c}"], {}, {("a", "b{c}"): LINK}, {("a", "b{c}"): 5e5, ("b{c}", "a"): 100.0})
    there, back = option["series"][0]["links"]
    assert there["label"] == {
        "show": True, "formatter": "20 ms, 8 Mbit/s\n4 Mbit/s now", "color": "--soft",
        "fontSize": 11, "lineHeight": 14,
    }  # fmt: skip
    assert back["label"]["formatter"] == "800 bit/s now"
    assert there["tooltip"]["formatter"].startswith("a to b(c)<br>20 ms one way")


def test_many_links_have_them_in_the_tooltip_only() -> None:
    names = list("abcdef")
    links = dict.fromkeys(permutations(names, 2), LINK)
    edges = link_map(names, {}, links, {})["series"][0]["links"]
    assert len(edges) == 30
    assert not any(edge["label"]["show"] for edge in edges)
