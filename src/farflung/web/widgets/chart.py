"""Charts: lines that grow, and drawings by any ECharts option. ``chart.js`` draws them in the browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nicegui.element import Element
from nicegui.elements.echart.echart import EChart  # registers the ECharts that comes with NiceGUI

__all__ = ["STEPS", "Axis", "Chart", "Line", "LineChart", "Points", "Unit"]

assert EChart.component is not None

Unit = Literal["number", "percent", "seconds", "bytes", "rate"]
#: (x, y); ``None``: a gap.
Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart. ``color``: the number of a theme color (default: by position).

    ``symbols``: each value is a point, and steps without a value are left out.
    """

    name: str
    color: int | None = None
    dashed: bool = False
    symbols: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The x axis of a chart. Where it is ``logarithmic``, points with x of 0 are not shown."""

    name: str
    unit: Unit = "number"
    logarithmic: bool = False


STEPS = Axis(name="step")


class LineChart(Element, component="chart.js"):
    """Lines over one x axis. ``label`` says in words what the chart shows."""

    def __init__(
        self,
        label: str,
        lines: Sequence[Line],
        data: Sequence[Points] = (),
        *,
        x: Axis = STEPS,
        unit: Unit = "number",
        zero: bool = False,
    ) -> None:
        """``unit``: of y. ``zero``: the y axis begins at 0. ``data``: the points of each line so far."""
        super().__init__()
        self._lines = len(lines)
        self._props["label"] = label
        self._props["spec"] = {
            "x": x.name,
            "xUnit": None if x.unit == "number" else x.unit,
            "logarithmic": x.logarithmic,
            "unit": unit,
            "zero": zero,
            "series": [{key: value for key, value in asdict(line).items() if value is not None} for line in lines],
        }
        self._props["data"] = [list(points) for points in data] or [[] for _ in lines]

    def append(self, rows: Sequence[Points]) -> None:
        """Add points to each line. Only they are sent."""
        if any(rows):
            self.run_method("append", [list(points) for points in rows])

    def show(self, rows: Sequence[Points]) -> None:
        """Replace all points."""
        self.run_method("set", [list(points) for points in rows])


class Chart(Element, component="chart.js"):
    """A drawing by an ECharts option. Colors are names of style variables, such as ``--c0``.

    ``head`` and ``rows`` say the same as a table, for people who do not see the drawing.
    """

    def __init__(self, label: str, head: Sequence[str], *, tall: bool = False) -> None:
        super().__init__()
        self._head = list(head)
        self._props["label"] = label
        self._props["tall"] = tall
        self._props["option"] = {}
        self._props["table"] = {"head": self._head, "rows": []}

    def show(self, option: Mapping[str, Any], rows: Sequence[Sequence[str]]) -> None:
        """Draw ``option``, with ``rows`` as the table. Nothing is sent if both are as before."""
        table = {"head": self._head, "rows": [list(row) for row in rows]}
        if self._props["option"] != option:
            self._props["option"] = dict(option)
        if self._props["table"] != table:
            self._props["table"] = table
