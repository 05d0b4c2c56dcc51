"""Write ``docs/reference/engines.md``, which operators each engine supports: ``python scripts/engine_table.py``.

An engine whose library is not installed here keeps the column that the page has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farflung.engines import get_engine
from farflung.errors import InputError
from farflung.graph.opset import OPSET

__all__ = ["PAGE", "engine_page", "read_page"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "engines.md"
#: The engines of the table. ``reference64`` supports what ``reference`` does.
_ENGINES = ("torch", "jax", "reference")
_HEAD = """# Operators of the engines

A worker computes with an engine (`farflung join --engine`). The planner gives a worker only stages whose operators its engine
supports. This page lists the operators of graphs, without `aten.`. `python scripts/engine_table.py` generates it, and a test
compares it with the engines. `farflung.testing.check_engine(engine)` checks the results and the gradients of each operator.

| engine | operators of graphs | precisions of jobs |
| --- | --- | --- |
"""


def read_page(text: str) -> dict[str, tuple[frozenset[str], str]]:
    """The operators and the precisions of each engine on a page."""
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    found: dict[str, tuple[frozenset[str], str]] = {}
    for number, name in enumerate(_ENGINES):
        precisions = [row[2] for row in rows if len(row) == 3 and row[0] == name]
        marked = frozenset(row[0] for row in rows if len(row) == len(_ENGINES) + 1 and row[number + 1] == "yes")
        if precisions:
            found[name] = marked, precisions[0]
    return found


def engine_page(before: str) -> str:
    """Return the page; ``before``: the present one."""
    known = read_page(before)
    for name in _ENGINES:
        try:
            support = get_engine(name).support("cpu")
        except InputError:
            continue
        shown = frozenset(_short(operator) for operator in support.operators)
        known[name] = shown, ", ".join(support.precisions)
    return _HEAD + _counts(known) + _table(known)


def _short(operator: str) -> str:
    return operator.removeprefix("aten.").removesuffix(".default")


def _graph_operators() -> list[str]:
    return [_short(name) for name, operator in OPSET.items() if operator.graph]


def _counts(known: Mapping[str, tuple[frozenset[str], str]]) -> str:
    total = len(_graph_operators())
    rows = [
        f"| `{name}` | {len(operators & set(_graph_operators()))} of {total} | {precisions} |"
        for name, (operators, precisions) in known.items()
    ]
    return "\n".join([*rows, "", ""])


def _table(known: Mapping[str, tuple[frozenset[str], str]]) -> str:
    lines = [f"| operator | {' | '.join(known)} |", f"| --- |{' --- |' * len(known)}"]
    for name in _graph_operators():
        marks = " | ".join("yes" if name in operators else "no" for operators, _ in known.values())
        lines.append(f"| `{name}` | {marks} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Write the page."""
    PAGE.write_text(engine_page(PAGE.read_text("utf-8") if PAGE.exists() else ""), encoding="utf-8")


if __name__ == "__main__":
    main()
