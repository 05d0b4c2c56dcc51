"""What only one place may do: read frames, read the time, change an object. Each check is first shown to fail on bad code."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "farflung"

#: ``messages`` turns frames into messages, ``wire`` turns bytes into frames, and the fuzzing kit damages frames.
READERS_OF_FRAMES = ("messages", "wire", "testing")
#: ``time.struct_time`` is a type.
TIME_TYPES = {"struct_time"}
#: In these packages an object's attributes are set by itself, or by the module that defines its class.
OWN_STATE = ("messages", "step", "worker", "broker", "client", "engines")
#: Objects and attributes of other libraries, which have no methods for that.
FOREIGN_STATE = {
    "grad": "torch accumulates into it",
    "data": "torch swaps a tensor's memory by it",
    "ctx": "torch's context of an autograd function",
    "entry": "tarfile.TarInfo",
    "tempfile": "the module's own setting",
}


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """The tree of ``source``, for several checks in a row."""
    return ast.parse(source)


def is_frame(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation).split("[")[0].split(" ")[0] in ("Frame", "frames.Frame")


def frame_reads(source: str) -> list[str]:
    """Where code reads the kind or the header of a frame, or matches a frame by its fields."""
    tree = parsed(source)
    arguments = [argument for node in ast.walk(tree) if isinstance(node, ast.arguments) for argument in ast.walk(node)]
    frames = {found.arg for found in arguments if isinstance(found, ast.arg) and is_frame(found.annotation)} | {"frame"}
    frames |= {
        ast.unparse(node.target) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and is_frame(node.annotation)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (
            node.attr == "header" or (node.attr == "kind" and ast.unparse(node.value).rpartition(".")[2] in frames)
        ):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.MatchClass) and ast.unparse(node.cls) == "Frame":
            found.append(f"line {node.lineno}: case Frame")
    return found


def time_reads(source: str) -> list[str]:
    """Where code reads the time by itself, or sleeps."""
    tree, found = parsed(source), []
    imported = any(isinstance(node, ast.Import) and any(name.name == "time" for name in node.names) for node in ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "time" and imported and node.attr not in TIME_TYPES:
                found.append(f"line {node.lineno}: time.{node.attr}")
            elif node.value.id in ("datetime", "date") and node.attr in ("now", "utcnow", "today"):
                found.append(f"line {node.lineno}: {node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found.append(f"line {node.lineno}: from time import")
    return found


def declared(tree: ast.Module) -> set[str]:
    """The attributes of the classes in a module: fields, class variables, and what methods set on ``self``."""
    found = set()
    for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in cls.body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        stored = (node for node in ast.walk(cls) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
        found |= {node.attr for node in stored if ast.unparse(node.value) == "self"}
    return found


def outside_writes(source: str) -> list[str]:
    """Where code sets an attribute of an object whose class is defined in another module."""
    tree = parsed(source)
    own = declared(tree) | FOREIGN_STATE.keys()
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and ast.unparse(node.value) not in {"self", "cls", *FOREIGN_STATE}
        and node.attr not in own
    ]


@cache
def found_in_sources() -> Mapping[str, Mapping[str, list[str]]]:
    """What the checks find: check -> file -> places. A file is parsed once for all checks."""
    found: dict[str, dict[str, list[str]]] = {"frames": {}, "time": {}, "writes": {}}
    for path in sorted(SOURCES.rglob("*.py")):
        name, room, source = str(path.relative_to(ROOT)), path.relative_to(SOURCES).parts[0], path.read_text()
        if room not in READERS_OF_FRAMES:
            found["frames"][name] = frame_reads(source)
        if room != "clock.py":
            found["time"][name] = time_reads(source)
        if room in OWN_STATE:
            found["writes"][name] = outside_writes(source)
    return {check: {name: places for name, places in files.items() if places} for check, files in found.items()}


def test_frames_are_read_in_one_place() -> None:
    assert found_in_sources()["frames"] == {}, "decode the frame, and route the message by its type"


def test_the_time_comes_from_the_clock() -> None:
    assert found_in_sources()["time"] == {}, "use farflung.clock"


def test_objects_change_their_own_attributes() -> None:
    assert found_in_sources()["writes"] == {}, "give the class a method, or its constructor the value"


@pytest.mark.parametrize(
    "source",
    [
        "budget.total = 1",
        "self._budget.total = 1",
        "live.times.begun += 1",
        "kept, budget.total = 1, 2",
        "del budget.total",
        "for budget.total in range(2): pass",
    ],
)
def test_the_check_of_outside_writes_finds(source: str) -> None:
    assert len(outside_writes(f"class A:\n    def f(self):\n        self.used = 1\n{source}")) == 1


@pytest.mark.parametrize(
    "source", ["self.total = 1", "item.used = 1", "item.size: int = 1", "leaf.grad = None", "a[budget.b] = 1"]
)
def test_the_check_of_outside_writes_passes(source: str) -> None:
    assert outside_writes(f"class A:\n    size: int = 0\n    def f(self):\n        self.used = 1\n{source}") == []


@pytest.mark.parametrize(
    "source",
    [
        "if frame.kind == 'value': pass",
        "run = frame.header['run']",
        "def f(peer: str, came: Frame) -> None:\n    return came.kind",
        "def f(peer: str, came: Frame | None) -> None:\n    return came.kind",
        "came: Frame = take()\nprint(came.kind)",
        "match came:\n    case Frame(kind='value'): pass",
        "self.frame.kind",
    ],
)
def test_the_check_of_frames_finds(source: str) -> None:
    assert len(frame_reads(source)) == 1


@pytest.mark.parametrize("source", ["fault.kind == 'kill'", "meta.to_header()", "def f(frame: Frame) -> None:\n    send(frame)"])
def test_the_check_of_frames_passes(source: str) -> None:
    assert frame_reads(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "import time\nnow = time.perf_counter",
        "from time import sleep",
        "datetime.now()",
        "def f():\n    import time\n    time.strftime('%H')",
    ],
)
def test_the_check_of_time_finds(source: str) -> None:
    assert len(time_reads(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from farflung.clock import monotonic",
        "import time\nx: time.struct_time",
        "self.time.now()",
        "time = 1.0 * array\ntime.shape",
    ],
)
def test_the_check_of_time_passes(source: str) -> None:
    assert time_reads(source) == []
