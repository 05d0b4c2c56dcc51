"""Sums by servers, rings and trees: what they add, what they cost, and which is chosen."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.sync.reductions import GroupLinks, Reduction, choose, runs_of, seconds, transfers


def equal_links(members: int, latency: float = 0.0, rate: float = 1.0) -> GroupLinks:
    return links_of(np.full((members, members), latency), np.full((members, members), rate))


def links_of(alpha: np.ndarray, beta: np.ndarray, **caps: tuple[float, ...]) -> GroupLinks:
    return GroupLinks(alpha=tuple(map(tuple, alpha.tolist())), beta=tuple(map(tuple, beta.tolist())), **caps)


def chain(members: int, turns: int) -> Reduction:
    return Reduction(by="tree", toward=tuple(range(-1, members - 1)), turns=turns)


def ring(members: int) -> Reduction:
    return Reduction(by="ring", toward=tuple((member + 1) % members for member in range(members)))


@st.composite
def reductions(draw: st.DrawFn) -> tuple[int, Reduction]:
    members = draw(st.integers(2, 7))
    order = draw(st.permutations(range(members)))
    kind = draw(st.sampled_from(["server", "ring", "tree"]))
    if kind == "server":
        return members, Reduction()
    toward = [-1] * members
    for place, member in enumerate(order):
        if kind == "ring":
            toward[member] = order[(place + 1) % members]
        elif place:
            toward[member] = order[draw(st.integers(0, place - 1))]
    return members, Reduction(by=kind, toward=tuple(toward), turns=draw(st.integers(1, 5)) if kind == "tree" else 1)


@settings(deadline=None)
@given(reductions(), st.integers(0, 9))
def test_every_member_ends_with_the_sum_of_all_and_each_transfer_stands_once(case: tuple[int, Reduction], piece: int) -> None:
    """Carried out by rounds, as ``transfers`` has them: what is sent has arrived before."""
    members, reduction = case
    reduction.check(members)
    route = reduction.route(piece, members)
    assert [member for member in range(members) if route.up[member] < 0] == [route.root]
    told = {route.root}
    for _ in range(members):
        told |= {target for source in told for target in route.passes_to(source)}
    assert told == set(range(members))
    sent = transfers(reduction, members)
    assert sum(item.part for item in sent) == pytest.approx(2 * (members - 1)), "each link of a tree carries all twice"
    cuts = reduction.cuts(members)
    held = [{(rank, cut): 1 for cut in range(cuts)} for rank in range(members)]
    for cut in range(cuts):
        order = sorted(range(members), key=lambda member: -depth(reduction.route(cut, members).up, member))
        for member in order:
            parent = reduction.route(cut, members).up[member]
            if parent >= 0:
                held[parent] |= {key: 1 for key in held[member] if key[1] == cut}
        assert sum(key[1] == cut for key in held[reduction.route(cut, members).root]) == members


def depth(up: tuple[int, ...], member: int) -> int:
    return 0 if up[member] < 0 else 1 + depth(up, up[member])


@pytest.mark.parametrize("members", range(2, 8))
def test_costs_over_equal_links_are_those_of_the_papers(members: int) -> None:
    links, size = equal_links(members, latency=0.3, rate=2.0), 10.0
    assert seconds(Reduction(), links, size) == pytest.approx(2 * (0.3 + size / members / 2.0))
    assert seconds(ring(members), links, size) == pytest.approx(2 * (members - 1) * (0.3 + size / members / 2.0))
    far = members - 1
    assert seconds(chain(members, 1), links, size) == pytest.approx(2 * far * (0.3 + size / 2.0))
    quick = equal_links(members, latency=0.0, rate=2.0)  # nothing else delays what follows
    assert seconds(chain(members, 4), quick, size) == pytest.approx(2 * far * size / 8.0 + 3 * size / 8.0)


def test_equal_links_ask_for_servers() -> None:
    found = choose(equal_links(5, latency=0.01), 3.0)
    assert found.reduction == Reduction()
    assert found.seconds["server"] < found.seconds["tree"] < found.seconds["ring"]


@pytest.mark.parametrize("members", range(3, 8))
def test_one_fast_way_round_asks_for_a_ring(members: int) -> None:
    """Neighbours on a circle have fast links, others slow ones; nobody knows the circle but the links."""
    places = np.random.default_rng(members).permutation(members)
    near = np.isin((places[:, None] - places[None, :]) % members, [1])
    found = choose(links_of(np.zeros((members, members)), np.where(near, 10.0, 0.01)), 1.0)
    assert found.reduction.by == "ring"
    follows = {int(places[a]): int(places[b]) for a, b in enumerate(found.reduction.toward)}
    assert follows == {place: (place - 1) % members for place in range(members)}
    assert found.seconds["ring"] == pytest.approx(2 * (members - 1) / members / 10.0)


@pytest.mark.parametrize("members", range(3, 8))
def test_a_hub_asks_for_a_tree(members: int) -> None:
    hub = members - 1
    slow = np.ones((members, members), bool)
    slow[hub], slow[:, hub] = False, False
    found = choose(links_of(np.where(slow, 0.2, 0.01), np.where(slow, 0.01, 10.0)), 1.0)
    assert found.reduction.by == "tree"
    assert found.reduction.toward == tuple(-1 if member == hub else hub for member in range(members))


def test_caps_count() -> None:
    """A member that may send little serves little: its neighbour adds up."""
    free = equal_links(3, latency=0.001)
    assert choose(free, 3.0).reduction.by == "server"
    capped = GroupLinks(alpha=free.alpha, beta=free.beta, up=(2.0, 2.0, 0.1), down=(2.0, 2.0, 2.0))
    found = choose(capped, 3.0)
    assert found.reduction.by == "tree"
    assert found.reduction.toward[2] >= 0
    assert found.seconds["server"] > found.seconds["tree"]


@pytest.mark.parametrize("seed", range(6))
def test_the_ring_of_few_members_is_the_best_of_all(seed: int) -> None:
    random, members = np.random.default_rng(seed), 5
    links = links_of(random.uniform(0, 0.1, (members, members)), random.uniform(0.1, 5, (members, members)))
    hop = [[links.alpha[i][j] + 1 / members / links.beta[i][j] for j in range(members)] for i in range(members)]
    slowest = [
        max(hop[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True)) for order in permutations(range(members))
    ]
    toward = ring_of(links)
    assert max(hop[a][b] for a, b in enumerate(toward)) == pytest.approx(min(slowest))


def ring_of(links: GroupLinks) -> tuple[int, ...]:
    from farflung.sync.reductions import _rings

    (found,) = _rings(links, 1.0)
    found.check(links.members)
    return found.toward


def test_large_groups_have_rings_too() -> None:
    random, members = np.random.default_rng(0), 12
    places = random.permutation(members)
    near = np.isin((places[:, None] - places[None, :]) % members, [1, members - 1])
    links = links_of(np.zeros((members, members)), np.where(near, 10.0, 0.01))
    assert seconds(Reduction(by="ring", toward=ring_of(links)), links, 1.0) == pytest.approx(2 * 11 / 12 / 10.0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 9))
def test_runs_tile_the_arrays_in_nearly_equal_parts(sizes: list[int], count: int) -> None:
    parts = runs_of(sizes, count)
    assert len(parts) == count
    flat = [(index, at) for runs in parts for index, start, stop in runs for at in range(start, stop)]
    assert flat == [(index, at) for index, size in enumerate(sizes) for at in range(size)]
    lengths = [sum(stop - start for _, start, stop in runs) for runs in parts]
    assert max(lengths) - min(lengths) <= 1


REFUSED = {
    "kind": (Reduction(by="gossip"), "a sum by 'gossip': known are server, ring, tree"),
    "turns": (Reduction(by="tree", toward=(-1, 0, 0), turns=0), "in 0 turns: it needs at least 1"),
    "two rings": (Reduction(by="ring", toward=(0, 2, 1)), r"toward \[0, 2, 1\]: this is no ring of all"),
    "two roots": (Reduction(by="tree", toward=(-1, -1, 0)), "this is no tree of all"),
    "circle": (Reduction(by="tree", toward=(-1, 2, 1)), "this is no tree of all"),
    "others": (Reduction(by="ring", toward=(1, 0)), "of 3 members"),
    "server": (Reduction(by="server", toward=(1, 2, 0)), "this is no server of all"),
}


@pytest.mark.parametrize(("reduction", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_way_to_sum(reduction: Reduction, text: str) -> None:
    with pytest.raises(InputError, match=text):
        reduction.check(3)


def test_one_member_has_nothing_to_sum() -> None:
    with pytest.raises(InputError, match="a group of 1 has nothing to sum"):
        choose(equal_links(1), 1.0)
