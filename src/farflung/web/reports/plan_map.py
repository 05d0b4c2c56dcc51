"""The map of a plan: regions as boxes in the order of the pipeline, devices in them with their stages, ways between them.

Regions flow in rows that turn at their ends, so that stages that follow each other tend to be neighbours. A way is as wide as
the root of its bytes and coloured by the share of the step in which it is busy; forward and backward bow to opposite sides.
Cost O(devices + ways); the busiest ways get labels where there is room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.units import Bytes, counted
from farflung.web.reports.ink import BUSY, Picture, busy_class, clean, element, fitted, percent, stage_colour, text_at
from farflung.web.reports.scene import Scene, Spot, Way, bundled

__all__ = ["plan_map"]

_WIDTH, _MARGIN, _GAP, _WIDEST_GAP, _BELOW = 1160, 16, 64, 170, 66
_HEAD, _PAD, _TILE_GAP = 26, 14, 26
_MOST_WAYS, _MOST_LABELS = 160, 14
_MOST_CHIPS = 4


@dataclass(frozen=True, slots=True)
class _Rect:
    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2

    def holds(self, point: tuple[float, float], margin: float = 0.0) -> bool:
        x, y = point
        return self.x - margin <= x <= self.x + self.width + margin and self.y - margin <= y <= self.y + self.height + margin

    def meets(self, other: _Rect) -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


def plan_map(scene: Scene) -> Picture:
    """The map of ``scene``; more than 128 devices are drawn as their regions, more than 72 ways by regions."""
    shown = bundled(scene, _MOST_WAYS)
    regions = _regions(shown)
    boxes, tiles, bottom = _layout(regions, len(shown.spots))
    places = tiles | {name: box for name, box in boxes.items() if name not in tiles}
    heaviest = max((way.nbytes for way in shown.ways), default=0.0)
    ways = sorted((way for way in shown.ways if {way.source, way.target} <= set(places)), key=lambda way: way.nbytes)
    curves = [(way, _curve(places[way.source], places[way.target])) for way in ways]
    body = [_region(name, boxes[name], shown) for name in regions]
    body += [_way(way, curve, heaviest, 5.5 if len(curves) <= 24 else 3.5) for way, curve in curves]
    body += [_tile(spot, tiles[spot.name], shown.stages) for spot in shown.spots]
    body += _labels(curves, list(tiles.values()))
    body.append(_legend(shown, bottom + 8))
    return Picture(
        name="plan-map",
        title="Devices, stages and links",
        description=_words(scene, shown),
        width=_WIDTH,
        height=int(bottom) + 62,
        body="\n".join(body),
    )


def _regions(scene: Scene) -> dict[str, list[Spot]]:
    groups: dict[str, list[Spot]] = {}
    for spot in sorted(scene.spots, key=lambda spot: spot.stages[0]):
        groups.setdefault(spot.region, []).append(spot)
    for region in scene.spare:
        groups.setdefault(region, [])
    return groups


def _layout(regions: dict[str, list[Spot]], total: int) -> tuple[dict[str, _Rect], dict[str, _Rect], float]:
    """Boxes of regions and tiles of devices, and where they end."""
    tile = (132.0, 54.0) if total <= 24 else (104.0, 54.0)
    sizes = {name: _size(len(spots), tile) for name, spots in regions.items()}
    rows: list[list[str]] = [[]]
    used = 0.0
    for name, (width, _, _) in sizes.items():
        if rows[-1] and used + _GAP + width > _WIDTH - 2 * _MARGIN:
            rows.append([])
            used = 0.0
        used += width + (_GAP if rows[-1] else 0.0)
        rows[-1].append(name)
    boxes: dict[str, _Rect] = {}
    tiles: dict[str, _Rect] = {}
    y = 12.0
    for number, row in enumerate(rows):
        height = max(sizes[name][1] for name in row)
        filled = sum(sizes[name][0] for name in row)
        gap = min(_WIDEST_GAP, (_WIDTH - 2 * _MARGIN - filled) / max(1, len(row) - 1))
        whole = filled + gap * (len(row) - 1)
        # A single row begins at the left, where narrow screens show it without scrolling.
        x = (_WIDTH - whole) / 2 if len(rows) > 1 else float(_MARGIN)
        for name in row if number % 2 == 0 else reversed(row):
            width, own, columns = sizes[name]
            boxes[name] = _Rect(x, y + (height - own) / 2, width, own)
            for place, spot in enumerate(regions[name]):
                down, across = divmod(place, columns)
                if (down + number) % 2:  # rows turn at their ends, as regions do
                    across = columns - 1 - across
                left = x + _PAD + across * (tile[0] + _TILE_GAP)
                top = boxes[name].y + _HEAD + down * (tile[1] + _TILE_GAP)
                tiles[spot.name] = _Rect(left, top, *tile)
            x += width + gap
        y += height + _BELOW
    return boxes, tiles, y - _BELOW + 22


def _size(count: int, tile: tuple[float, float]) -> tuple[float, float, int]:
    """Width, height and columns of a region's box."""
    columns = min(count, 2 if count <= 4 else 4) or 1
    rows = -(-count // columns)
    width = 2 * _PAD + columns * tile[0] + (columns - 1) * _TILE_GAP
    height = _HEAD + _PAD + (rows * tile[1] + (rows - 1) * _TILE_GAP if rows else 6)
    return width, height, columns


def _region(name: str, box: _Rect, scene: Scene) -> str:
    label = clean(fitted(name or "no region", box.width - 24))
    spare = scene.spare.get(name, 0)
    note = f" · {spare} not used" if spare else ""
    if name in scene.inside:
        note += f" · {Bytes(scene.inside[name])} per step inside"
    return element("rect", kind="box s-edge", x=box.x, y=box.y, width=box.width, height=box.height, rx=10) + (
        f'<text class="soft" x="{box.x + 12:.5g}" y="{box.y + 17:.5g}"><tspan class="ink strong">{label}</tspan>{note}</text>'
    )


def _tile(spot: Spot, rect: _Rect, stages: int) -> str:
    """Name, a chip for each stage, bars for computing and memory."""
    x, y = rect.x, rect.y
    colour = stage_colour(spot.stages[0], stages)[0]
    edge = "" if spot.reliable else ' stroke-dasharray="4 3"'
    frame = (
        f'<rect class="tile" x="{x:.5g}" y="{y:.5g}" width="{rect.width:.5g}" height="{rect.height:.5g}" rx="7" '
        f'stroke="{colour}" stroke-width="2"{edge}/>'
    )
    name = text_at(x + 8, y + 15, fitted(spot.name, rect.width - 16, 11.0), "ink strong small")
    parts = [f"<title>{clean(spot.facts)}</title>", frame, name]
    chips = spot.stages[:_MOST_CHIPS]
    for number, stage in enumerate(chips):
        parts.append(_chip(x + 8 + 25 * number, y + 21, stage, stages))
    if len(spot.stages) > len(chips):
        parts.append(text_at(x + 10 + 25 * len(chips), y + 32, f"+{len(spot.stages) - len(chips)}", "soft tiny"))
    low = y + rect.height - 9
    for place, (share, letter) in enumerate(((spot.busy, "busy"), (spot.memory, "mem"))):
        if share is not None:
            parts.append(_bar((x + 8 + place * rect.width / 2, low, rect.width / 2 - 14), share, letter))
    return f"<g>{''.join(parts)}</g>"


def _chip(x: float, y: float, stage: int, stages: int) -> str:
    fill, ink = stage_colour(stage, stages)
    return (
        f'<rect x="{x:.5g}" y="{y:.5g}" width="23" height="14" rx="4" fill="{fill}"/>'
        f'<text class="middle small strong" x="{x + 11.5:.5g}" y="{y + 10.8:.5g}" style="fill:{ink}">{stage}</text>'
    )


def _bar(place: tuple[float, float, float], share: float, letter: str) -> str:
    x, y, width = place
    room = width - 27
    return (
        text_at(x, y + 4, letter, "soft tiny")
        + element("rect", kind="bar", x=x + 25, y=y, width=room, height=4, rx=2)
        + element("rect", kind="fill", x=x + 25, y=y, width=max(0.5, room * min(1.0, share)), height=4, rx=2)
    )


Curve = list[tuple[float, float]]


def _curve(here: _Rect, there: _Rect) -> Curve:
    """Points of a bow from the border of one box to that of the other."""
    (x1, y1), (x2, y2) = here.centre, there.centre
    dx, dy = x2 - x1, y2 - y1
    length = math.hypot(dx, dy) or 1.0
    bow = min(70.0, 8.0 + 0.13 * length)
    cx, cy = (x1 + x2) / 2 + dy / length * bow, (y1 + y2) / 2 - dx / length * bow
    points = []
    for step in range(41):
        t = step / 40
        a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t * t
        points.append((a * x1 + b * cx + c * x2, a * y1 + b * cy + c * y2))
    outside = [point for point in points if not here.holds(point, 2.0) and not there.holds(point, 4.0)]
    return outside if len(outside) > 1 else [points[10], points[30]]


def _way(way: Way, curve: Curve, heaviest: float, most: float) -> str:
    width = 1.2 + most * math.sqrt(way.nbytes / heaviest) if heaviest > 0 else 1.2
    kind = busy_class(way.share)
    path = "M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in curve)
    (x1, y1), (x2, y2) = curve[-2], curve[-1]
    angle = math.atan2(y2 - y1, x2 - x1)
    size = 3.5 + 1.1 * width
    tip = " ".join(
        f"{x2 + size * math.cos(angle + turn) * reach:.1f},{y2 + size * math.sin(angle + turn) * reach:.1f}"
        for turn, reach in ((0.0, 0.4), (2.5, 1.0), (-2.5, 1.0))
    )
    dashed = " dashed" if way.exchange else ""
    return (
        f'<g><title>{clean(way.facts)}</title><path class="way s-{kind}{dashed}" d="{path}" stroke-width="{width:.1f}"/>'
        f'<polygon class="{kind}" points="{tip}"/></g>'
    )


def _labels(curves: Sequence[tuple[Way, Curve]], taken: list[_Rect]) -> list[str]:
    """Codec and bytes on the ways that are busiest, where there is room."""
    order = sorted(curves, key=lambda pair: (-(pair[0].share or 0.0), -pair[0].nbytes))
    found: list[str] = []
    for way, curve in order:
        if len(found) == _MOST_LABELS:
            break
        codec = "" if way.codec in ("", "identity") else f"{way.codec} · "
        share = f" · {percent(way.share)}" if way.share is not None else ""
        text = f"{codec}{Bytes(way.nbytes)}{share}"
        width = 6.1 * len(text) + 10
        for part in (0.5, 0.36, 0.64, 0.24, 0.76):
            x, y = curve[int(part * (len(curve) - 1))]
            (x1, y1), (x2, y2) = curve[0], curve[-1]
            if abs(y2 - y1) > abs(x2 - x1):  # beside a way that goes up or down, on the side that it bows to
                x += math.copysign(width / 2 + 7, y2 - y1)
            else:
                y -= math.copysign(13, x2 - x1)
            rect = _Rect(min(max(4.0, x - width / 2), _WIDTH - width - 4), y - 8, width, 16)
            if not any(rect.meets(other) for other in taken):
                taken.append(rect)
                back = element("rect", kind="ground", x=rect.x, y=rect.y, width=width, height=16, rx=8, opacity=0.9)
                found.append(back + text_at(rect.x + width / 2, y + 4, text, "ink small middle"))
                break
    return found


def _legend(scene: Scene, y: float) -> str:
    parts = [text_at(_MARGIN, y + 14, "link busy in", "soft")]
    x = _MARGIN + 76
    limits = [0.0, *BUSY, 1.0]
    for number in range(len(BUSY) + 1):
        parts.append(element("rect", kind=f"b{number}", x=x, y=y + 7, width=22, height=6, rx=3))
        parts.append(text_at(x + 27, y + 14, f"{limits[number]:.0%}–{limits[number + 1]:.0%}", "soft"))
        x += 92
    parts.append(text_at(x, y + 14, "of the step; width: bytes per step", "soft"))
    if any(way.exchange for way in scene.ways):
        parts.append(f'<path class="way dashed s-b0" d="M{x + 200} {y + 10}h34" stroke-width="3"/>')
        parts.append(text_at(x + 240, y + 14, "between replicas, or of tied parameters", "soft"))
    notes = ["chips: stages"]
    if any(spot.busy is not None for spot in scene.spots):
        notes.append("busy: share of the step in which a device computes")
    if any(spot.memory is not None for spot in scene.spots):
        notes.append("mem: share of its memory")
    if not all(spot.reliable for spot in scene.spots):
        notes.append("dashed frame: unreliable")
    if any(way.count > 1 for way in scene.ways):
        notes.append("links of two regions are drawn together")
    parts.append(text_at(_MARGIN, y + 34, "; ".join(notes), "soft"))
    return "".join(parts)


def _words(scene: Scene, shown: Scene) -> str:
    """The map in words."""
    regions = counted(len({spot.region for spot in scene.spots}), "region")
    parts = [f"{counted(scene.stages, 'stage')} on {counted(len(scene.spots), 'device')} in {regions}."]
    if len(shown.spots) != len(scene.spots):
        parts.append("Each region is drawn as one box.")
    left = sum(scene.spare.values())
    if left:
        parts.append(f"{counted(left, 'device')} {'is' if left == 1 else 'are'} not used.")
    known = [way for way in scene.ways if way.share is not None]
    if known:
        parts.append(f"The busiest link: {max(known, key=lambda way: way.share or 0.0).facts}.")
    loaded = [spot for spot in scene.spots if spot.busy is not None]
    if loaded:
        parts.append(f"The busiest device: {max(loaded, key=lambda spot: spot.busy or 0.0).facts}.")
    return " ".join(parts)
