"""The time chart of a step: a row for each device with what it computes, sends and receives, from spans of a trace.

The same for simulated and for real steps, since both write the same spans. Few spans are drawn one by one, each with its own
words; many become one path for each row and kind, in which neighbours closer than a third of a pixel touch. Cost O(n log n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.telemetry import ProcessTrace, Span, SpanKind
from farflung.units import Bytes, Seconds, counted
from farflung.web.reports.ink import Picture, clean, element, fitted, percent, stage_colour, text_at

__all__ = ["ChartRow", "time_chart"]

_LEFT, _WIDTH, _RIGHT = 170, 1160, 16
_MOST_ROWS, _MOST_SPANS = 96, 1500
_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "weights": "gradients of weights",
    "update": "update",
    "activation": "activations",
    "gradient": "gradients",
    "exchange": "between replicas",
    "message": "messages",
    "coding": "codec",
}
#: What frames between replicas are called in spans; the simulator calls all of them an exchange.
_EXCHANGES = frozenset(("exchange", "part", "total", "sync", "pieces"))
_COMPUTE = {"F": "forward", "B": "backward", "W": "weights"}
#: Drawn first, because they last while a frame waits for its link.
_UNDER = (SpanKind.ENCODE, SpanKind.DECODE)
#: Lanes of a row: where they begin and how high they are, in parts of the row.
_LANES = {"compute": (0.08, 0.5), "send": (0.62, 0.14), "receive": (0.78, 0.14)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartRow:
    """One device: what it did, and which stages it holds."""

    trace: ProcessTrace
    stages: tuple[int, ...] = ()


def time_chart(rows: Sequence[ChartRow], stages: int, title: str = "One step") -> Picture:
    """The chart of all spans of ``rows``, in their order; time begins at the first span."""
    shown = rows[:_MOST_ROWS]
    spans = [span for row in shown for span in _moved(row)]
    begin = min((span.start + row.trace.offset.seconds for row in shown for span in _moved(row)), default=0.0)
    end = max((span.end + row.trace.offset.seconds for row in shown for span in _moved(row)), default=0.0)
    total = max(end - begin, 1e-9)
    height = 66 if len(shown) <= 6 else max(15, min(48, 900 // len(shown)))
    top = 30
    scale = (_WIDTH - _LEFT - _RIGHT) / total
    single = len(spans) <= _MOST_SPANS
    body = [_axis(total, scale, top, height * len(shown))]
    for number, row in enumerate(shown):
        y = top + number * height
        body.append(_label(row, y, height, stages))
        body.append(element("rect", kind="idle", x=_LEFT, y=y + 0.08 * height, width=total * scale, height=0.5 * height))
        body += _blocks(row, (y, height), (begin, scale), single)
    bottom = top + height * len(shown)
    body.append(_legend(spans, bottom + 12, len(rows) - len(shown)))
    return Picture(
        name="time-chart",
        title=title,
        description=_words(rows, begin, total),
        width=_WIDTH,
        height=bottom + 44,
        body="\n".join(body),
    )


def _moved(row: ChartRow) -> list[Span]:
    """Spans without waiting; pauses are what is left free. Exchanges are drawn by their frames."""
    return [span for span in row.trace.spans if span.what not in (SpanKind.WAIT, SpanKind.EXCHANGE)]


def _kind(span: Span) -> tuple[str, str]:
    """(lane, what is drawn) of a span."""
    if span.what is SpanKind.COMPUTE:
        return "compute", _COMPUTE.get(span.name[:1] if span.micro_batch >= 0 else "", "update")
    lane = "send" if span.what in (SpanKind.SEND, SpanKind.ENCODE) else "receive"
    if span.what in (SpanKind.ENCODE, SpanKind.DECODE):
        return lane, "coding"
    carried = span.name.partition(" ")[2]  # after the verb: ``send activation``
    if carried.startswith(("activation", "gradient")):
        return lane, carried.partition(" ")[0]
    return lane, "exchange" if carried in _EXCHANGES else "message"


def _blocks(row: ChartRow, place: tuple[float, float], time: tuple[float, float], single: bool) -> list[str]:
    (y, height), (begin, scale) = place, time
    shift = row.trace.offset.seconds
    bands: dict[tuple[str, str], list[tuple[float, float]]] = {}
    found: list[str] = []
    for span in sorted(_moved(row), key=lambda span: (span.what not in _UNDER, span.start)):
        lane, kind = _kind(span)
        x, width = _LEFT + (span.start + shift - begin) * scale, max(span.seconds * scale, 0.4)
        offset, part = _LANES[lane]
        if not single:
            bands.setdefault((lane, kind), []).append((x, x + width))
            continue
        found.append(
            f'<rect class="{kind}" x="{x:.2f}" y="{y + offset * height:.2f}" width="{width:.2f}" height="{part * height:.2f}" '
            f'rx="{min(2.0, width / 3):.2g}"><title>{_tooltip(span, kind, row, begin)}</title></rect>'
        )
        text = f"{span.stage}{span.name[:1]}{span.micro_batch}" if len(row.stages) > 1 else f"{span.name[:1]}{span.micro_batch}"
        if lane == "compute" and span.micro_batch >= 0 and height >= 30 and width > 6.5 * len(text):
            found.append(text_at(x + width / 2, y + 0.33 * height + 4, text, "on-bar small middle"))
    for (lane, kind), intervals in sorted(bands.items(), key=lambda item: item[0][1] != "coding"):
        offset, part = _LANES[lane]
        found.append(_band(kind, intervals, (y + offset * height, part * height)))
    return found


def _band(kind: str, intervals: Sequence[tuple[float, float]], place: tuple[float, float]) -> str:
    """Many blocks as one path."""
    y, height = place
    merged: list[tuple[float, float]] = []
    for left, right in intervals:
        if merged and left - merged[-1][1] < 0.34:
            merged[-1] = (merged[-1][0], max(right, merged[-1][1]))
        else:
            merged.append((left, right))
    path = "".join(f"M{left:.1f} {y:.1f}h{right - left:.1f}v{height:.1f}h{left - right:.1f}z" for left, right in merged)
    return f'<path class="{kind}" d="{path}"/>'


def _tooltip(span: Span, kind: str, row: ChartRow, begin: float) -> str:
    """``pc1: send activation of micro-batch 3, stage 0, to pc2, 12.5 kB, 1.2 s to 1.3 s``."""
    start = span.start + row.trace.offset.seconds - begin
    moves = span.what is not SpanKind.COMPUTE
    what = (span.name if moves else _NAMES[kind]) + (f" of micro-batch {span.micro_batch}" if span.micro_batch >= 0 else "")
    facts = [what]
    if span.stage >= 0:
        facts.append(f"stage {span.stage}")
    if moves and span.peer:
        facts.append(f"{'to' if span.what in (SpanKind.SEND, SpanKind.ENCODE) else 'from'} {span.peer}")
    if moves and span.nbytes:
        facts.append(str(Bytes(span.nbytes)))
    return clean(f"{row.trace.process}: {', '.join(facts)}, {Seconds(start)} to {Seconds(start + span.seconds)}")


def _label(row: ChartRow, y: float, height: float, stages: int) -> str:
    size = "small" if height < 24 else ""
    chips = "".join(
        element(
            "rect",
            x=_LEFT - 12 - 7 * number,
            y=y + 0.08 * height,
            width=5,
            height=0.5 * height,
            fill=stage_colour(stage, stages)[0],
        )
        for number, stage in enumerate(reversed(row.stages[:4]))
    )
    text = row.trace.process + (f" ({', '.join(map(str, row.stages))})" if height >= 24 and row.stages else "")
    return chips + text_at(
        _LEFT - 14 - 7 * min(4, len(row.stages)), y + 0.33 * height + 4, fitted(text, _LEFT - 50), f"ink end {size}".strip()
    )


def _axis(total: float, scale: float, top: int, height: float) -> str:
    step = 10 ** math.floor(math.log10(total / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if total / (step * factor) <= 9)
    parts = []
    for number in range(int(total / step + 1e-9) + 1):
        x = _LEFT + number * step * scale
        parts.append(f'<path class="s-grid" d="M{x:.1f} {top - 6}v{height + 8:.0f}"/>')
        parts.append(text_at(x, top - 11, "0" if not number else str(Seconds(number * step)), "soft middle small"))
    return "".join(parts)


def _legend(spans: Sequence[Span], y: float, hidden: int) -> str:
    there = {_kind(span)[1] for span in spans}
    parts, x = [], float(_LEFT)
    for kind, name in _NAMES.items():
        if kind in there:
            parts.append(element("rect", kind=kind, x=x, y=y + 2, width=14, height=10, rx=2))
            parts.append(text_at(x + 19, y + 11, name, "soft"))
            x += 34 + 6.3 * len(name)
    parts.append(element("rect", kind="idle", x=x, y=y + 2, width=14, height=10, rx=2))
    parts.append(text_at(x + 19, y + 11, "idle" + (f"; {hidden} more devices are not drawn" if hidden > 0 else ""), "soft"))
    return "".join(parts)


def _words(rows: Sequence[ChartRow], begin: float, total: float) -> str:
    """The chart in words: for each device how much of the time it computed."""
    shares = []
    for row in rows[:_MOST_ROWS]:
        computing = sum(span.seconds for span in row.trace.spans if span.what is SpanKind.COMPUTE)
        ends = [span.end + row.trace.offset.seconds for span in row.trace.spans if span.what is SpanKind.COMPUTE]
        last = f", until {Seconds(max(ends) - begin)}" if ends else ""
        shares.append(f"{row.trace.process} computes {percent(computing / total)}{last}")
    return f"{Seconds(total)} on {counted(len(rows), 'device')}: {'; '.join(shares)}."
