"""What the drawings of plans have in common: colours, text that is safe in SVG, and the document around pictures.

Colours stand in a style block, once for light and once for dark; programs that know no media queries draw the light ones.
Names come from documents that nobody vouches for: all text is escaped, and shortened to its place.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = [
    "BUSY",
    "Picture",
    "busy_class",
    "clean",
    "document",
    "element",
    "fitted",
    "inline",
    "percent",
    "stage_colour",
    "text_at",
]

#: Okabe and Ito's palette, told apart by colour-blind readers too; more stages than these go along a ramp.
_STAGES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F3C8D")
#: Upper ends of the classes of busy shares.
BUSY = (0.05, 0.25, 0.5, 0.75)
_LIGHT = {
    "ground": "#ffffff", "box": "#f4f6f7", "edge": "#c3ccd1", "tile": "#ffffff", "ink": "#1d2a30", "soft": "#5c6a71",
    "bar": "#dde4e8", "fill": "#5c6a71", "idle": "#eef1f3", "grid": "#d5dce0", "on-bar": "#ffffff",
    "b0": "#8fa3ad", "b1": "#4a90c2", "b2": "#d99a00", "b3": "#d55e00", "b4": "#b0182b",
    "forward": "#3573b1", "backward": "#b8601f", "weights": "#a8842a", "update": "#7f3c8d", "activation": "#2a9d6f",
    "gradient": "#b5495b", "exchange": "#c4559a", "message": "#5c6a71", "coding": "#b9c3c9",
}  # fmt: skip
_DARK = {
    "ground": "#14191c", "box": "#1d2428", "edge": "#46535a", "tile": "#262f34", "ink": "#e8edf0", "soft": "#a3b0b7",
    "bar": "#3a464c", "fill": "#a3b0b7", "idle": "#20282c", "grid": "#36434a", "on-bar": "#10181f",
    "b0": "#71848e", "b1": "#5aa9de", "b2": "#e6b030", "b3": "#ef8440", "b4": "#f0566a",
    "forward": "#5b9bd8", "backward": "#e59a5c", "weights": "#c7a44c", "update": "#b27cc0", "activation": "#3fbf8b",
    "gradient": "#e07a8a", "exchange": "#dc7db8", "message": "#a3b0b7", "coding": "#56636a",
}  # fmt: skip
_FONT = 'Inter, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'
_STROKES = ("edge", "grid", "b0", "b1", "b2", "b3", "b4")
#: Mean width of a letter in parts of the font's size; generous, so that texts stay in their places.
_LETTER = 0.58


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing of ``width`` x ``height``: ``body`` is SVG, ``title`` and ``description`` say in words what it shows."""

    name: str
    title: str
    description: str
    width: int
    height: int
    body: str


def clean(text: str) -> str:
    """``text`` on one line, printable and escaped."""
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))


def fitted(text: str, width: float, size: float = 12.0) -> str:
    """As much of ``text`` as ``width`` holds at font size ``size``; not escaped."""
    most = max(1, int(width / (_LETTER * size)))
    return text if len(text) <= most else text[: most - 1] + "…"


def text_at(x: float, y: float, text: str, kind: str = "", **attributes: str | float) -> str:
    """A line of text; ``kind``: classes of the style."""
    return element("text", clean(text), x=x, y=y, kind=kind, **attributes)


def element(tag: str, inner: str = "", kind: str = "", **attributes: str | float) -> str:
    """An SVG element; ``_`` in attribute names stands for ``-``, ``inner`` is SVG already."""
    words = f' class="{kind}"' if kind else ""
    for key, value in attributes.items():
        words += f' {key.replace("_", "-")}="{_plain(value)}"'
    return f"<{tag}{words}>{inner}</{tag}>" if inner else f"<{tag}{words}/>"


def _plain(value: str | float) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def stage_colour(stage: int, stages: int) -> tuple[str, str]:
    """Fill of a stage and the colour of text on it, in light and dark alike."""
    fill = _STAGES[stage] if stages <= len(_STAGES) else _ramp(stage / max(1, stages - 1))
    red, green, blue = (int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return fill, "#10181f" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#ffffff"


def _ramp(place: float) -> str:
    """From blue over green and yellow to red, every second stage a little lighter through the order of the hues."""
    red, green, blue = colorsys.hls_to_rgb(0.66 - 0.68 * place if place < 0.97 else 0.0, 0.52, 0.55)
    return f"#{int(255 * red):02x}{int(255 * green):02x}{int(255 * blue):02x}"


def percent(share: float) -> str:
    """A share of 1, as people read it."""
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"


def busy_class(share: float | None) -> str:
    """The colour class of something that is busy in ``share`` of the step (None: not known)."""
    return "b0" if share is None else f"b{sum(share >= limit for limit in BUSY)}"


def inline(picture: Picture) -> str:
    """The picture as one ``svg`` element, for a page or a file of its own."""
    return _svg(picture.name, picture.title, picture.description, (picture.width, picture.height), picture.body)


def document(pictures: Sequence[Picture], title: str) -> str:
    """A complete SVG document with the pictures below each other."""
    parts, y = [], 0
    width = max(picture.width for picture in pictures)
    for picture in pictures:
        head = text_at(16, y + 30, picture.title, "ink big")
        parts += [head, f'<g transform="translate(0 {y + 44})">{picture.body}</g>']
        y += picture.height + 56
    description = " ".join(f"{picture.title}: {picture.description}" for picture in pictures)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _svg("plan", title, description, (width, y), "\n".join(parts)) + "\n"


def _svg(name: str, title: str, description: str, size: tuple[int, int], body: str) -> str:
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawn" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-labelledby="{name}-title {name}-text"><title id="{name}-title">{clean(title)}</title>'
        f'<desc id="{name}-text">{clean(description)}</desc><style>{_style()}</style>'
        f'<rect class="ground" width="{width}" height="{height}"/>{body}</svg>'
    )


def _style() -> str:
    shared = (
        f".drawn text{{font-family:{_FONT};font-size:12px}}.drawn .big{{font-size:17px;font-weight:600}}"
        ".drawn .small{font-size:10.5px}.drawn .tiny{font-size:9px}.drawn .strong{font-weight:600}"
        ".drawn .middle{text-anchor:middle}.drawn .end{text-anchor:end}.drawn .way{fill:none;stroke-linecap:round}"
        ".drawn .dashed{stroke-dasharray:6 4;stroke-linecap:butt}"
    )
    return f"{shared}{_colours(_LIGHT)}@media (prefers-color-scheme:dark){{{_colours(_DARK)}}}"


def _colours(table: dict[str, str]) -> str:
    fills = "".join(f".drawn .{name}{{fill:{value}}}" for name, value in table.items())
    lines = "".join(f".drawn .s-{name}{{stroke:{table[name]}}}" for name in _STROKES)
    return fills + lines
