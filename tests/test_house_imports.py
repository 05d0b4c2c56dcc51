"""No modules import each other in a circle, in functions and for type checkers neither; the check first fails on bad code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"farflung": ROOT / "src/farflung", "benchmarks": ROOT / "benchmarks"}


def sources() -> dict[str, str]:
    """Module -> text."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            found[name.removesuffix(".__init__")] = path.read_text()
    return found


def imported(source: str, known: Mapping[str, object]) -> Iterator[str]:
    """The modules among ``known`` that ``source`` imports anywhere, also in functions and for type checkers."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from [name for name in (full, node.module or "") if name in known][:1]


def circle(texts: Mapping[str, str]) -> list[str]:
    """A circle of modules that import each other; empty: there is none."""
    graph = {name: set(imported(text, texts)) - {name} for name, text in texts.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(sources()) == []


def test_the_check_sees_imports_in_functions_and_for_type_checkers() -> None:
    lazy = "def f():\n    from p.b import g"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a"
    assert sorted(set(circle({"p.a": lazy, "p.b": typed}))) == ["p.a", "p.b"]
    assert circle({"p.a": lazy, "p.b": ""}) == []


def test_the_check_tells_a_package_from_its_modules() -> None:
    assert circle({"p": "from p.a import f", "p.a": "from p import b", "p.b": ""}) == []
    assert circle({"p": "from p.a import f", "p.a": "from p import f"}) != []
