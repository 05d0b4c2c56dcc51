"""Neighbours of a layout: one thing is changed, and the cuts are often made anew for it."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from farflung.planners.auto.layout import Context, Groups, Layout

__all__ = ["Moves"]

#: Of so many spare devices the one with the best link is taken.
_LOOK = 3


class Moves:
    """Random neighbours within the limits of a search. ``most``: devices; ``replicas``: of a stage; ``stages``."""

    def __init__(
        self, context: Context, draws: random.Random, limits: tuple[int, int, int], others: Sequence[tuple[int, ...]]
    ) -> None:
        self.context, self.random = context, draws
        self.most, self.replicas, self.stages = limits
        self.divisions = list(others)
        settings = context.settings
        self.positions = [int(position) for position in context.chain(self._any()).positions]
        self.moves: list[Callable[[Layout], Layout | None]] = [
            *(self._shift, self._shift, self._recut, self._swap, self._replace, self._reverse, self._split, self._merge),
            self._schedule,
        ]
        if self.replicas > 1:
            self.moves += [self._grow, self._grow, self._drop, self._fuse, self._halve]
        if settings.ratios:
            self.moves.append(self._ratio)
        if settings.syncs:
            self.moves.append(self._sync)
        if self.divisions:
            self.moves += [self._divide, self._divide]

    def _any(self) -> Layout:
        job = self.context.problem.job
        return Layout(((0,),), (0, len(self.context.problem.graph.ops)), job.plan.base_schedule, job.micro_batch_sizes)

    def neighbour(self, layout: Layout) -> Layout | None:
        """One of them; None: the move that was drawn does not apply here."""
        found = self.random.choice(self.moves)(layout)
        return found if found is not None and self._allows(found) else None

    def _allows(self, layout: Layout) -> bool:
        widest = max(len(group) for group in layout.groups)
        return len(layout.devices) <= self.most and len(layout.groups) <= self.stages and widest <= self.replicas

    def _spare(self, layout: Layout, beside: int) -> int | None:
        """A device that has nothing to do: of a few the one with the fastest link to ``beside``."""
        used = set(layout.devices)
        count = len(self.context.topology)
        if len(used) == count:
            return None
        drawn = [self.random.randrange(count) for _ in range(4 * _LOOK)]
        spare = [i for i in drawn if i not in used][:_LOOK] or [i for i in range(count) if i not in used][:_LOOK]
        return max(spare, key=lambda i: (float(self.context.topology.beta[beside, i]), self.context.speeds[i], -i))

    def _fitted(self, layout: Layout) -> Layout | None:
        """With the cuts that are best for the groups by the dynamic program."""
        if len(layout.devices) < sum(len(group) for group in layout.groups):
            return None  # devices with several stages are beyond it
        return self.context.divide(layout)

    def _maybe_fitted(self, layout: Layout) -> Layout | None:
        return self._fitted(layout) if self.random.random() < 0.5 else layout

    # -- cuts ---------------------------------------------------------------------------------------------------------

    def _shift(self, layout: Layout) -> Layout | None:
        """One boundary some candidates further."""
        if len(layout.groups) < 2:
            return None
        at = self.random.randrange(1, len(layout.groups))
        place = bisect_left(self.positions, layout.cuts[at]) + self.random.choice((-8, -4, -2, -1, 1, 2, 4, 8))
        if not 0 < place < len(self.positions):
            return None
        position = self.positions[place]
        if not layout.cuts[at - 1] < position < layout.cuts[at + 1]:
            return None
        return replace(layout, cuts=(*layout.cuts[:at], position, *layout.cuts[at + 1 :]))

    def _recut(self, layout: Layout) -> Layout | None:
        return self._fitted(layout)

    # -- devices ------------------------------------------------------------------------------------------------------

    def _swap(self, layout: Layout) -> Layout | None:
        """Two devices change places, or two whole groups."""
        groups = layout.groups
        if len(groups) < 2:
            return None
        i, j = self.random.sample(range(len(groups)), 2)
        if self.random.random() < 0.5:
            changed = list(groups)
            changed[i], changed[j] = groups[j], groups[i]
            return self._maybe_fitted(replace(layout, groups=tuple(changed)))
        a, b = self.random.choice(groups[i]), self.random.choice(groups[j])
        swap = {a: b, b: a}
        return self._maybe_fitted(replace(layout, groups=tuple(tuple(swap.get(d, d) for d in group) for group in groups)))

    def _reverse(self, layout: Layout) -> Layout | None:
        if len(layout.groups) < 2:
            return None
        i, j = sorted(self.random.sample(range(len(layout.groups)), 2))
        groups = layout.groups
        turned = (*groups[:i], *reversed(groups[i : j + 1]), *groups[j + 1 :])
        return self._maybe_fitted(replace(layout, groups=turned))

    def _replace(self, layout: Layout) -> Layout | None:
        gone = self.random.choice(layout.devices)
        new = self._spare(layout, gone)
        if new is None:
            return None
        groups = tuple(tuple(new if d == gone else d for d in group) for group in layout.groups)
        return self._maybe_fitted(replace(layout, groups=groups))

    # -- stages -------------------------------------------------------------------------------------------------------

    def _split(self, layout: Layout) -> Layout | None:
        """Further devices take a part of a stage."""
        at = self.random.randrange(len(layout.groups))
        start, stop = layout.cuts[at : at + 2]
        inside = self.positions[bisect_left(self.positions, start + 1) : bisect_left(self.positions, stop)]
        if not inside:
            return None
        extra, grown = list[int](), layout
        for member in layout.groups[at]:
            new = self._spare(grown, member)
            if new is None:
                return None
            extra.append(new)
            grown = replace(grown, groups=(*grown.groups, (new,)))
        pair = [layout.groups[at], tuple(extra)]
        if self.random.random() < 0.5:
            pair.reverse()
        groups = (*layout.groups[:at], *pair, *layout.groups[at + 1 :])
        cuts = (*layout.cuts[: at + 1], inside[len(inside) // 2], *layout.cuts[at + 1 :])
        return self._maybe_fitted(replace(layout, groups=groups, cuts=cuts))

    def _merge(self, layout: Layout) -> Layout | None:
        """A stage joins its neighbour."""
        if len(layout.groups) < 2:
            return None
        at = self.random.randrange(len(layout.groups) - 1)
        kept = layout.groups[at + self.random.randrange(2)]
        groups = (*layout.groups[:at], kept, *layout.groups[at + 2 :])
        cuts = (*layout.cuts[: at + 1], *layout.cuts[at + 2 :])
        return self._maybe_fitted(replace(layout, groups=groups, cuts=cuts))

    # -- replicas -----------------------------------------------------------------------------------------------------

    def _grow(self, layout: Layout) -> Layout | None:
        """A further device for the smallest group, or a random one."""
        sizes = [len(group) for group in layout.groups]
        at = sizes.index(min(sizes)) if self.random.random() < 0.5 else self.random.randrange(len(sizes))
        new = self._spare(layout, layout.groups[at][0])
        if new is None:
            return None
        return self._maybe_fitted(replace(layout, groups=_with(layout.groups, at, (*layout.groups[at], new))))

    def _drop(self, layout: Layout) -> Layout | None:
        wide = [at for at, group in enumerate(layout.groups) if len(group) > 1]
        if not wide:
            return None
        at = self.random.choice(wide)
        gone = self.random.choice(layout.groups[at])
        left = tuple(d for d in layout.groups[at] if d != gone)
        return self._maybe_fitted(replace(layout, groups=_with(layout.groups, at, left)))

    def _fuse(self, layout: Layout) -> Layout | None:
        """Two neighbouring groups become one of twice the size: all of them, or one pair."""
        groups = layout.groups
        if len(groups) < 2:
            return None
        if self.random.random() < 0.5:
            joined = [a + b for a, b in zip(groups[::2], groups[1::2], strict=False)]
            joined += [groups[-1]] if len(groups) % 2 else []
            return self._fitted(replace(layout, groups=tuple(joined)))
        at = self.random.randrange(len(groups) - 1)
        cuts = (*layout.cuts[: at + 1], *layout.cuts[at + 2 :])
        merged = (*groups[:at], groups[at] + groups[at + 1], *groups[at + 2 :])
        return self._maybe_fitted(replace(layout, groups=merged, cuts=cuts))

    def _halve(self, layout: Layout) -> Layout | None:
        """Groups become two stages each: all of them, or one."""
        wide = [at for at, group in enumerate(layout.groups) if len(group) > 1]
        if not wide:
            return None
        chosen = set(wide) if self.random.random() < 0.5 else {self.random.choice(wide)}
        groups: list[tuple[int, ...]] = []
        for at, group in enumerate(layout.groups):
            half = len(group) // 2
            groups += [group[:half], group[half:]] if at in chosen else [group]
        return self._fitted(replace(layout, groups=tuple(groups)))

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _schedule(self, layout: Layout) -> Layout | None:
        """Another schedule; an interleaved one deals the model out to the devices in several rounds."""
        others = [name for name in self.context.settings.schedules if name != layout.schedule]
        if not others:
            return None
        name = self.random.choice(others)
        folded = len(layout.devices) < sum(len(group) for group in layout.groups)
        if name.startswith("interleaved-"):
            return None if layout.width > 1 else self._fold(layout, name)
        if not folded:
            return replace(layout, schedule=name)
        return self._fitted(replace(layout, groups=tuple((device,) for device in layout.devices), schedule=name))

    def _fold(self, layout: Layout, name: str) -> Layout | None:
        """Each device's share of the candidates, cut in as many parts as the schedule has rounds."""
        chunks, devices = int(name.rpartition("-")[2]), layout.devices
        total = layout.cuts[-1]
        if len(devices) < 2 or len(self.positions) - 1 < chunks * len(devices):
            return None
        own = dict.fromkeys(devices, 0)
        for group, (start, stop) in zip(layout.groups, pairwise(layout.cuts), strict=True):
            own[group[0]] += stop - start
        cuts, groups, done = [0], list[tuple[int, ...]](), 0.0
        for _ in range(chunks):
            for device in devices:
                done += own[device] / chunks
                later = [p for p in self.positions if p > cuts[-1]]
                cuts.append(min(later, key=lambda p: abs(p - done), default=-1))
                groups.append((device,))
        cuts[-1] = total
        if sorted(set(cuts)) != cuts:
            return None
        return replace(layout, groups=tuple(groups), cuts=tuple(cuts), schedule=name)

    def _ratio(self, layout: Layout) -> Layout:
        return replace(layout, ratio=self.random.choice((0.0, *self.context.settings.ratios)))

    def _sync(self, layout: Layout) -> Layout:
        return replace(layout, sync=self.random.randrange(len(self.context.syncs)))

    def _divide(self, layout: Layout) -> Layout | None:
        """The step's samples in other micro-batches."""
        sizes = self.random.choice(self.divisions)
        if sizes == layout.sizes or layout.width > len(sizes):
            return None
        return self._maybe_fitted(replace(layout, sizes=sizes))


def _with(groups: Groups, at: int, group: tuple[int, ...]) -> Groups:
    return (*groups[:at], group, *groups[at + 1 :])
