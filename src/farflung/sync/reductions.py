"""Sums over a group in any order: by sharded servers, around a ring, or along a tree, whichever is soonest over given links.

What is summed is cut into pieces. Of each piece partial sums go up a tree of members to a root, and the total comes down another
one: with sharded servers both are stars, and every member is the root of as many pieces; with a ring both are chains that end and
begin at the root; a tree is the same for all pieces. A member adds what it gets to its own values in the order of ranks, so the
result does not depend on who comes first, and all members end with the bits of the root.

Sources, seconds for S bytes over equal links (latency a, b bytes per second), n members:

- sharded servers: DT-FM, equation (2): ``2 (a + S / (n b))``; a member's links work at once, so that sum is a maximum here.
- ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009):
  ``2 (n - 1) (a + S / (n b))``.
- tree of depth d in k turns: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH"
  (2005), reduce and broadcast, pipelined: ``2 d (a + S / (k b)) + (k - 1) S / (k b)``.

``seconds`` counts the same transfers over unequal links, one message at a time on a directed link, and under caps of what a
member may send or take. What differs from the papers: links decide who is whose neighbour. Cost of ``choose``: n! / n orders of
the ring up to 7 members, O(n^3) beyond; 2 n trees, O(n^2) each; the result is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations
from math import inf

from farflung.errors import InputError
from farflung.units import Seconds

__all__ = ["KINDS", "Choice", "GroupLinks", "Reduction", "Route", "Run", "Transfer", "choose", "runs_of", "seconds", "transfers"]

KINDS = ("server", "ring", "tree")
#: Numbers of turns that trees are tried with.
_TURNS = (1, 2, 4, 8)
#: Up to so many members all orders of a ring are tried.
_ALL_ORDERS = 7
#: Bytes of a piece, at most.
_LARGEST = 1 << 20

Row = tuple[float, ...]
#: (array, start, stop): numbers of one array.
Run = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How a piece is summed: ``up[m]`` gets what member m has added up, ``down[m]`` sends m the total (-1: m is the root)."""

    root: int
    up: tuple[int, ...]
    down: tuple[int, ...]

    def adds(self, member: int) -> tuple[int, ...]:
        """Whose partial sums ``member`` adds to its own values, in this order."""
        return tuple(child for child, parent in enumerate(self.up) if parent == member)

    def passes_to(self, member: int) -> tuple[int, ...]:
        """To whom ``member`` passes the total on."""
        return tuple(child for child, parent in enumerate(self.down) if parent == member)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """How a group sums. ``toward``: with ``ring`` who comes next after each member, with ``tree`` the parent of each (the root:
    -1), with ``server`` nothing. ``turns``: pieces that follow each other along a tree."""

    by: str = "server"
    toward: tuple[int, ...] = ()
    turns: int = 1

    def check(self, members: int) -> None:
        """Whether ``members`` members can sum so.

        Raises:
            InputError: they can't.
        """
        if self.by not in KINDS:
            raise InputError(f"a sum by {self.by!r}: known are {', '.join(KINDS)}")
        if self.turns < 1:
            raise InputError(f"a sum in {self.turns} turns: it needs at least 1")
        if self.by == "server" and not self.toward:
            return
        good = self.by != "server" and len(self.toward) == members
        good = good and all(-1 <= m < members for m in self.toward)
        if not good or not (_is_ring(self.toward) if self.by == "ring" else _is_tree(self.toward)):
            raise InputError(f"a sum by {self.by} of {members} members toward {list(self.toward)}: this is no {self.by} of all")

    def cuts(self, members: int) -> int:
        """Into how many pieces of equal size sums are cut, at least."""
        return self.turns if self.by == "tree" else members

    def count(self, members: int, nbytes: int) -> int:
        """Into how many pieces ``nbytes`` are cut: the least number, or a multiple of it that makes none too large."""
        cuts = self.cuts(members)
        return cuts * max(1, -(-nbytes // (cuts * _LARGEST)))

    def route(self, piece: int, members: int) -> Route:
        """How piece number ``piece`` is summed."""
        if self.by == "tree":
            return Route(root=self.toward.index(-1), up=self.toward, down=self.toward)
        root = piece % members
        if self.by == "server":
            star = tuple(-1 if member == root else root for member in range(members))
            return Route(root=root, up=star, down=star)
        up = tuple(-1 if member == root else after for member, after in enumerate(self.toward))
        down = tuple(-1 if member == root else self.toward.index(member) for member in range(members))
        return Route(root=root, up=up, down=down)

    def most_waiting(self, members: int) -> float:
        """The largest part of what is summed that may wait at a member for its turn."""
        routes = [self.route(piece, members) for piece in range(self.cuts(members))]
        return max(sum(len(route.adds(member)) for route in routes) for member in range(members)) / len(routes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """``source`` sends ``part`` of what is summed to ``target``, when all of the turns before has arrived there."""

    turn: int
    source: int
    target: int
    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLinks:
    """``alpha[i][j]`` seconds and ``beta[i][j]`` bytes per second from member i to j; ``up`` and ``down``: what a member may send
    and take in all, bytes per second (infinite: as its links)."""

    alpha: tuple[Row, ...]
    beta: tuple[Row, ...]
    up: Row = ()
    down: Row = ()

    @property
    def members(self) -> int:
        """How many there are."""
        return len(self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What ``choose`` found: the soonest, and the seconds of the best of each kind."""

    reduction: Reduction
    seconds: dict[str, Seconds]


@lru_cache(maxsize=256)
def transfers(reduction: Reduction, members: int) -> tuple[Transfer, ...]:
    """What crosses the links, in turns; the pieces of a tree follow each other by one turn."""
    found = []
    cuts = reduction.cuts(members)
    for piece in range(cuts):
        route = reduction.route(piece, members)
        first = piece if reduction.by == "tree" else 0
        heights, depths = _heights(route.up), _depths(route.down)
        for member in range(members):
            if member != route.root:
                up = Transfer(turn=first + heights[member], source=member, target=route.up[member], part=1 / cuts)
                late = first + heights[route.root] + depths[member] - 1
                found += [up, Transfer(turn=late, source=route.down[member], target=member, part=1 / cuts)]
    return tuple(sorted(found, key=lambda sent: (sent.turn, sent.source, sent.target)))


def seconds(reduction: Reduction, links: GroupLinks, nbytes: float) -> Seconds:
    """When the last total of ``nbytes`` has arrived, if all begin at 0."""
    members = links.members
    here, made = [0.0] * members, [0.0] * members
    free: dict[tuple[int, int], float] = {}
    out, into, turn = [0.0] * members, [0.0] * members, 0
    for sent in transfers(reduction, members):
        if sent.turn != turn:
            turn, made = sent.turn, list(here)
        a, b, size = sent.source, sent.target, sent.part * nbytes
        begin = max(made[a], free.get((a, b), 0.0), out[a])
        slow = min(links.beta[a][b], links.up[a] if links.up else inf)
        free[a, b] = end = begin + size / slow
        out[a] = begin + (size / links.up[a] if links.up else 0.0)
        into[b] = end = max(end, into[b] + (size / links.down[b] if links.down else 0.0))
        here[b] = max(here[b], end + links.alpha[a][b])
    return Seconds(max(here))


@lru_cache(maxsize=512)
def choose(links: GroupLinks, nbytes: float) -> Choice:
    """Choose the sum of ``nbytes`` that ends soonest over ``links``; of equals the first of ``KINDS``.

    Raises:
        InputError: there are fewer than two members.
    """
    if links.members < 2:
        raise InputError(f"a group of {links.members} has nothing to sum: give it two members")
    best: dict[str, tuple[Seconds, Reduction]] = {}
    for reduction in (Reduction(), *_rings(links, nbytes), *_trees(links, nbytes)):
        took = seconds(reduction, links, nbytes)
        if reduction.by not in best or took < best[reduction.by][0] * (1 - 1e-12):
            best[reduction.by] = took, reduction
    chosen = min(best.values(), key=lambda item: (round(item[0], 12), KINDS.index(item[1].by)))
    return Choice(reduction=chosen[1], seconds={kind: best[kind][0] for kind in KINDS if kind in best})


def runs_of(sizes: Sequence[int], count: int) -> tuple[tuple[Run, ...], ...]:
    """Arrays of ``sizes`` numbers, laid end to end and cut into ``count`` parts: (array, start, stop) of the runs of each."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    found, first = [], 0
    for low, high in pairwise(round(ends[-1] * index / count) for index in range(count + 1)):
        runs = []
        while first < len(sizes) and ends[first + 1] <= low:
            first += 1
        index = first
        while index < len(sizes) and ends[index] < high:
            start, stop = max(low - ends[index], 0), min(high - ends[index], sizes[index])
            if start < stop:
                runs.append((index, start, stop))
            index += 1
        found.append(tuple(runs))
    return tuple(found)


def _rings(links: GroupLinks, nbytes: float) -> Iterator[Reduction]:
    """The ring whose slowest hop is soonest, then whose hops together are."""
    count = links.members
    hop = [[links.alpha[i][j] + nbytes / count / links.beta[i][j] for j in range(count)] for i in range(count)]

    def cost(order: Sequence[int]) -> tuple[float, float]:
        hops = [hop[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True)]
        return max(hops), sum(hops)

    if count <= _ALL_ORDERS:
        best = min(((0, *rest) for rest in permutations(range(1, count))), key=cost)
    else:
        best = _improved(_nearest(hop), cost)
    toward = [0] * count
    for a, b in zip(best, (*best[1:], best[0]), strict=True):
        toward[a] = b
    yield Reduction(by="ring", toward=tuple(toward))


def _nearest(hop: Sequence[Sequence[float]]) -> tuple[int, ...]:
    order, left = [0], set(range(1, len(hop)))
    while left:
        order.append(min(left, key=lambda member: (hop[order[-1]][member], member)))
        left.remove(order[-1])
    return tuple(order)


def _improved(order: tuple[int, ...], cost: Callable[[Sequence[int]], tuple[float, float]]) -> tuple[int, ...]:
    """With stretches reversed where that helps (2-opt, each once)."""
    best, low = order, cost(order)
    for start in range(1, len(order) - 1):
        for stop in range(start + 2, len(order) + 1):
            turned = (*best[:start], *reversed(best[start:stop]), *best[stop:])
            if (now := cost(turned)) < low:
                best, low = turned, now
    return best


def _trees(links: GroupLinks, nbytes: float) -> Iterator[Reduction]:
    """From every root the tree of the soonest paths and that of the fastest links, in some numbers of turns."""
    count = links.members
    both = [
        [links.alpha[i][j] + links.alpha[j][i] + nbytes * (1 / links.beta[i][j] + 1 / links.beta[j][i]) for j in range(count)]
        for i in range(count)
    ]
    found = {_grown(both, root, along): None for root in range(count) for along in (True, False)}
    for toward in found:
        for turns in _TURNS:
            yield Reduction(by="tree", toward=toward, turns=turns)


def _grown(both: Sequence[Sequence[float]], root: int, along: bool) -> tuple[int, ...]:
    """A tree grown from ``root``: by the sum of the path (Dijkstra) or by the next link alone (Prim)."""
    toward, reach = [-1] * len(both), [inf] * len(both)
    reach[root], left = 0.0, set(range(len(both)))
    while left:
        member = min(left, key=lambda item: (reach[item], item))
        left.remove(member)
        for other in left:
            route = both[member][other] + (reach[member] if along else 0.0)
            if route < reach[other]:
                reach[other], toward[other] = route, member
    return tuple(toward)


def _heights(up: Sequence[int]) -> list[int]:
    """Of each member: links to the farthest one that sends through it."""
    found = [0] * len(up)
    for member in range(len(up)):
        at, height = member, 0
        while up[at] >= 0:
            at, height = up[at], height + 1
            found[at] = max(found[at], height)
    return found


def _depths(down: Sequence[int]) -> list[int]:
    found = []
    for member in range(len(down)):
        at, depth = member, 0
        while down[at] >= 0:
            at, depth = down[at], depth + 1
        found.append(depth)
    return found


def _is_ring(toward: Sequence[int]) -> bool:
    at, seen = 0, set()
    while at >= 0 and at not in seen:
        seen.add(at)
        at = toward[at]
    return at == 0 and len(seen) == len(toward)


def _is_tree(toward: Sequence[int]) -> bool:
    for member in range(len(toward)):
        at, steps = member, 0
        while toward[at] >= 0 and steps <= len(toward):
            at, steps = toward[at], steps + 1
        if steps > len(toward):
            return False
    return list(toward).count(-1) == 1
