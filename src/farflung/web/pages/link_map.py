"""The map of machines and links as an ECharts option: machines of a region stand together, on a circle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from farflung.units import BytesPerSecond, Seconds
from farflung.web.sources.broker_poll import LinkRow

__all__ = ["link_map", "places"]

#: Links drawn at most: those with traffic first, then the fastest. So few of them have their figures beside them.
_MOST_LINKS, _MOST_LABELS = 400, 6
#: So few machines stand on one circle: links inside a region are then long enough for their figures.
_ONE_CIRCLE = 8
#: Half of the map.
_WIDTH, _HEIGHT = 1000.0, 500.0
#: Share of the bandwidth in use -> color.
_COLORS = ((0.8, "--c1"), (0.3, "--c4"), (0.0, "--c0"))


def places(names: Sequence[str], regions: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return where each machine stands on the map."""
    few = len(names) <= _ONE_CIRCLE
    groups: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (regions.get(name, ""), name)):
        groups.setdefault("" if few else regions.get(name, ""), []).append(name)
    found: dict[str, tuple[float, float]] = {}
    for number, region in enumerate(sorted(groups)):
        members = groups[region]
        turn = 2 * math.pi * number / len(groups) - math.pi / 2
        far = 0.0 if len(groups) == 1 else 320.0
        radius = 420.0 if len(groups) == 1 else min(150.0, 26.0 * len(members))
        if len(members) == 1:
            radius = 0.0
        for place, name in enumerate(members):
            angle = 2 * math.pi * place / len(members) - (math.pi / 2 if len(members) > 2 else math.pi)
            x, y = far * math.cos(turn) + radius * math.cos(angle), far * math.sin(turn) + radius * math.sin(angle)
            found[name] = (round(x * _WIDTH / _HEIGHT, 1), round(-y, 1))
    return found


def link_map(
    names: Sequence[str],
    regions: Mapping[str, str],
    links: Mapping[tuple[str, str], LinkRow],
    moving: Mapping[tuple[str, str], float],
) -> dict[str, Any]:
    """Return the option. ``moving``: bytes per second now."""
    many = len(names) > 24
    nodes = [
        {
            "name": name,
            "value": [x, y],
            "symbolSize": 11 if many else 20,
            "itemStyle": {"color": "--accent", "borderColor": "--paper", "borderWidth": 2},
            "label": {"show": not many, "position": "top" if y > 0 else "bottom", "color": "--ink", "fontSize": 12.5},
            "tooltip": {"formatter": "{b}"},
        }
        for name, (x, y) in places(names, regions).items()
    ]
    known = [pair for pair in {**links, **moving} if set(pair) <= set(names) and pair[0] != pair[1]]
    known.sort(key=lambda pair: (-moving.get(pair, 0.0), -(links[pair].beta if pair in links else 0.0), pair))
    busiest = max(moving.values(), default=0.0)
    labeled = len(known) <= _MOST_LABELS
    edges = [_edge(pair, links.get(pair), moving.get(pair, 0.0), busiest) for pair in known[:_MOST_LINKS]]
    for edge in edges:
        edge["label"]["show"] = labeled
    return {
        "animation": False,
        "tooltip": {"confine": True, "backgroundColor": "--paper", "borderColor": "--line", "textStyle": {"color": "--ink"}},
        "grid": {"left": 30, "right": 30, "top": 30, "bottom": 40},
        "xAxis": {"type": "value", "show": False, "min": -_WIDTH, "max": _WIDTH},
        "yAxis": {"type": "value", "show": False, "min": -_HEIGHT, "max": _HEIGHT},
        "series": [
            {
                "type": "graph",
                "coordinateSystem": "cartesian2d",
                "data": nodes,
                "links": edges,
                "edgeSymbol": ["none", "arrow"],
                "edgeSymbolSize": 7,
                "emphasis": {"focus": "adjacency", "label": {"show": True}, "lineStyle": {"width": 4}},
                "silent": False,
            }
        ],
    }


def _edge(pair: tuple[str, str], known: LinkRow | None, rate: float, busiest: float) -> dict[str, Any]:
    share = rate / known.beta if known is not None and known.beta > 0 else 0.0
    color = next(color for limit, color in _COLORS if share >= limit) if rate else "--line"
    words, figures = [f"{pair[0]} to {pair[1]}"], []
    if known is not None:
        words.append(f"{Seconds(known.alpha)} one way, {BytesPerSecond(known.beta)}")
        figures.append(f"{Seconds(known.alpha)}, {BytesPerSecond(known.beta)}")
    if rate:
        words.append(f"{BytesPerSecond(rate)} now" + (f", {share:.1%} of the bandwidth" if share else ""))
        figures.append(f"{BytesPerSecond(rate)} now")
    return {
        "source": pair[0],
        "target": pair[1],
        "lineStyle": {
            "color": color,
            "width": round(1.0 + 4.0 * rate / busiest, 1) if rate else 1.0,
            "curveness": 0.2,
            "opacity": 0.9 if rate else 0.7,
        },
        "label": {"formatter": "\n".join(figures), "color": "--soft", "fontSize": 11, "lineHeight": 14},
        "tooltip": {"formatter": _plain("\n".join(words)).replace("\n", "<br>")},
    }


def _plain(text: str) -> str:
    """``text`` escaped, and without the braces that ECharts replaces."""
    for sign, other in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("{", "("), ("}", ")")):
        text = text.replace(sign, other)
    return text
