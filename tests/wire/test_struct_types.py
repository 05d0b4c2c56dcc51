"""Threads that use a type of msgspec for the first time at the same moment: each gets its value, and the process lives."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Each round has new types, so that each has a first use.
_PROGRAM = """
import sys, threading
import msgspec
from farflung.wire.struct_types import prepare

sys.setswitchinterval(1e-6)


def first_use(number):
    inner = msgspec.defstruct(f"Inner{number}", [("a", int), ("b", "list[int]")])
    outer = msgspec.defstruct(f"Outer{number}", [("x", dict[str, inner]), ("y", list[inner]), ("z", float)])
    barrier, found = threading.Barrier(8), []

    def use():
        barrier.wait()
        prepare(outer)
        found.append(msgspec.convert({"x": {"q": {"a": 1, "b": [2]}}, "y": [{"a": 3, "b": []}], "z": 1.0}, outer))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.x["q"].a for one in found] == [1] * 8


for number in range(200):
    first_use(number)
print("lives")
"""


def test_threads_that_use_a_type_at_once() -> None:
    """Without ``prepare``, the first rounds end the process with SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr


def test_decoders_are_made_while_a_module_is_imported_or_of_prepared_types() -> None:
    """A call inside a function that describes a type is allowed in files that import ``prepare``."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "msgspec" not in text or "import prepare" in text or path.name == "struct_types.py":
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [f"{path.name}: {ast.unparse(call)}" for call in ast.walk(function) if _describes(call)]
    assert found == []


def _describes(node: ast.AST) -> bool:
    """Whether msgspec describes a type when ``node`` is run."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name = ast.unparse(node.func)
    if not name.startswith("msgspec."):
        return False
    return node.func.attr in ("convert", "Decoder") or (
        node.func.attr == "decode" and any(one.arg == "type" for one in node.keywords)
    )
