"""The house numbers of CONTRIBUTING.md, checked on every source file; each check is first shown to fail on bad code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MAX_FILE_LINES = 600
MAX_BODY_LINES = 60
P95_BODY_LINES = 25
MAX_PARAMETERS = 6
#: Keyword arguments are the whole surface of these: options of a command, settings of the three-line interface.
OPTIONS_ARE_PARAMETERS = {"src/farflung/cli", "src/farflung/api"}
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_ATTRIBUTES = {("torch", "load"), ("torch", "save"), ("builtins", "eval"), ("builtins", "exec")}
FORBIDDEN_CALLS = {"eval", "exec"}
#: Bases from other packages that document no methods of ours.
OWN_BASES = {"Protocol", "ABC", "Generic", "BaseModel", "NamedTuple", "Enum", "StrEnum", "IntEnum", "Exception"}
FORBIDDEN_ROOMS = {"utils", "common", "core", "shared", "types", "helpers", "misc"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """The tree of ``source``, for several checks in a row."""
    return ast.parse(source)


@lru_cache(maxsize=1)
def functions(source: str) -> list[tuple[str, int, int]]:
    """The name of each function, its code lines and its parameters."""
    found = (node for node in ast.walk(parsed(source)) if isinstance(node, Function))
    lines = source.splitlines()
    return [(function.name, body_lines(function, lines), parameters(function)) for function in found]


def body_lines(function: Function, lines: Sequence[str]) -> int:
    """Code lines of a body: no docstring, no blank lines, no lines that hold a comment only."""
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    if not body:
        return 0
    own = lines[body[0].lineno - 1 : function.end_lineno]
    return sum(1 for line in own if line.strip() and not line.strip().startswith("#"))


def parameters(function: Function) -> int:
    spec = function.args
    names = [arg.arg for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    return len(names) - (bool(names) and names[0] in ("self", "cls"))


def long_bodies(source: str) -> list[str]:
    long = [(name, lines) for name, lines, _ in functions(source) if lines > MAX_BODY_LINES]
    return [f"{name}: {lines} code lines, at most {MAX_BODY_LINES}" for name, lines in long]


def many_parameters(source: str) -> list[str]:
    many = [(name, count) for name, _, count in functions(source) if count > MAX_PARAMETERS]
    return [f"{name}: {count} parameters, at most {MAX_PARAMETERS}" for name, count in many]


def dangers(source: str) -> list[str]:
    """Ways to run what came from outside."""
    found = []
    for node in ast.walk(parsed(source)):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append(f"line {node.lineno}: {node.func.id}()")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in FORBIDDEN_ATTRIBUTES:
                found.append(f"line {node.lineno}: {node.value.id}.{node.attr}")
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(f"line {node.value.lineno}: allow_pickle")
        found += [f"import of {m}" for m in modules if m.split(".")[0] in FORBIDDEN_IMPORTS]
        found += [f"import of {m}" for m in modules if tuple(m.split(".")) in FORBIDDEN_ATTRIBUTES]
    return found


def inherited_docstrings() -> frozenset[str]:
    """Methods that a base class or protocol documents; their implementations need not repeat it."""
    return frozenset(
        function.name
        for path in SOURCES
        for cls in ast.walk(ast.parse(path.read_text()))
        if isinstance(cls, ast.ClassDef) and any("Protocol" in ast.unparse(b) or "ABC" in ast.unparse(b) for b in cls.bases)
        for function in cls.body
        if isinstance(function, Function) and ast.get_docstring(function)
    )


def foreign_names(tree: ast.Module) -> frozenset[str]:
    """Names that a module imports from other packages."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("farflung")):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return frozenset(found) - OWN_BASES


def undocumented(source: str, inherited: frozenset[str] = frozenset()) -> list[str]:
    tree = parsed(source)
    foreign = foreign_names(tree)
    found = [] if ast.get_docstring(tree) or not tree.body else ["module head"]
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        prefix, parent = stack.pop()
        bases = {ast.unparse(base).split(".")[0].split("[")[0] for base in getattr(parent, "bases", [])}
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
                continue
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            excused = "overload" in decorators or any(name.endswith(".setter") for name in decorators)
            excused |= bool(bases & foreign) or (bool(prefix) and node.name in inherited)
            if not ast.get_docstring(node) and not excused:
                found.append(f"{prefix}{node.name}")
            if isinstance(node, ast.ClassDef):
                stack.append((f"{prefix}{node.name}.", node))
    return found


def body_lengths(source: str) -> list[str]:
    """How many code lines each function of ``source`` has, as text."""
    return [str(lines) for _, lines, _ in functions(source)]


@cache
def found_in_sources() -> Mapping[str, Mapping[Path, list[str]]]:
    """What each check finds in each source file. A file is parsed once for all checks."""
    checks = {
        "long_bodies": long_bodies,
        "body_lengths": body_lengths,
        "many_parameters": many_parameters,
        "undocumented": partial(undocumented, inherited=inherited_docstrings()),
        "dangers": dangers,
    }
    found: dict[str, dict[Path, list[str]]] = {name: {} for name in checks}
    for path in SOURCES:
        source = path.read_text()
        for name, check in checks.items():
            found[name][path] = check(source)
    return found


def of_sources(check: str, free: tuple[str, ...] = ()) -> list[str]:
    """What ``check`` finds, with the file's name; ``free``: folders for which it does not hold."""
    names = {path: str(path.relative_to(ROOT)) for path in SOURCES}
    found = found_in_sources()[check]
    return [f"{names[path]}: {text}" for path in SOURCES if not names[path].startswith(free) for text in found[path]]


def complaints(check: Callable[[str], list[str]], paths: list[Path]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {text}" for path in paths for text in check(path.read_text())]


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES + TESTS}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_function_bodies_are_short() -> None:
    assert of_sources("long_bodies") == []


def test_nineteen_in_twenty_bodies_are_shorter_still() -> None:
    lengths = sorted(int(length) for lengths in found_in_sources()["body_lengths"].values() for length in lengths)
    assert lengths[int(0.95 * (len(lengths) - 1))] <= P95_BODY_LINES


def test_functions_take_few_parameters() -> None:
    assert of_sources("many_parameters", free=tuple(OPTIONS_ARE_PARAMETERS)) == []


def test_what_is_public_is_documented() -> None:
    assert of_sources("undocumented") == []


def test_nothing_untrusted_runs() -> None:
    assert of_sources("dangers") == []


def test_rooms_and_modules_have_meaning_in_their_names() -> None:
    names = [part for path in SOURCES for part in path.relative_to(ROOT / "src").with_suffix("").parts]
    assert FORBIDDEN_ROOMS & set(names) == set()


def without_place(map_: str, names: Iterable[str]) -> list[str]:
    """The modules among ``names`` that the map of their package, its docstring, does not name."""
    named = set(re.findall(r"`(\w+)/?`", map_))
    return [name for name in names if name not in named]


def test_each_package_has_a_map_of_its_modules() -> None:
    found = {}
    for path in (path for path in SOURCES if path.name == "__init__.py" and path.parent != ROOT / "src/farflung"):
        inside = [*path.parent.glob("*.py"), *(one.parent for one in path.parent.glob("*/__init__.py"))]
        names = sorted({one.stem for one in inside} - {"__init__", "__main__"})
        found[str(path.relative_to(ROOT))] = without_place(ast.get_docstring(ast.parse(path.read_text())) or "", names)
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_the_check_of_maps_finds_modules_without_a_place() -> None:
    assert without_place("Codecs.\n\n- ``base``: the protocol.\n| `sparse/` | top-k |", ["base", "sparse", "top"]) == ["top"]


def test_importing_the_package_loads_no_tensor_library() -> None:
    code = "import sys, farflung; print(sorted({'torch', 'jax', 'transformers'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_the_package_is_typed() -> None:
    assert (ROOT / "src/farflung/py.typed").exists()


def function_of(lines: int) -> str:
    return "def f():\n    '''Doc.'''\n\n    # why\n" + "    x = 1\n" * lines


def test_the_length_check_counts_code_lines_only() -> None:
    assert long_bodies(function_of(MAX_BODY_LINES)) == []
    assert long_bodies(function_of(MAX_BODY_LINES + 1)) == ["f: 61 code lines, at most 60"]


def test_the_parameter_check_leaves_out_self() -> None:
    assert many_parameters("class C:\n    def f(self, a, b, c, *, d, e, f): ...") == []
    assert many_parameters("def f(a, b, c, *, d, e, f, g): ...") == ["f: 7 parameters, at most 6"]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, cloudpickle as cp",
        "from pickle import loads",
        "from torch import load",
        "import torch\ntorch.load('x')",
        "x = eval('1')",
        "exec('1')",
        "np.load('x', allow_pickle=True)",
        "np.load('x', allow_pickle=flag)",
    ],
)
def test_the_danger_check_finds(source: str) -> None:
    assert len(dangers(source)) >= 1


@pytest.mark.parametrize("source", ["model.eval()", "np.load('x', allow_pickle=False)", "from safetensors import safe_open"])
def test_the_danger_check_passes(source: str) -> None:
    assert dangers(source) == []


def test_the_docstring_check_finds_modules_classes_functions_and_methods() -> None:
    source = "class A:\n    def b(self): ...\n    def _c(self): ...\n    def d(self): ...\ndef e(): ...\ndef _f(): ..."
    assert undocumented(source, frozenset({"d", "e"})) == ["module head", "A", "e", "A.b"]
    assert undocumented("'''Head.'''\ndef f():\n    '''Doc.'''\n    def inner(): ...") == []
    assert undocumented("'''Head.'''\nimport grpc\nclass A(grpc.B):\n    '''Doc.'''\n    def c(self): ...") == []
    assert undocumented("") == []


def imports_of_tests(source: str) -> list[str]:
    """Imports of test modules and of ``conftest``: pytest alone imports them."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
    return [f"import of {m}" for m in modules if any(part == "conftest" or part.startswith("test_") for part in m.split("."))]


def test_no_test_module_imports_another() -> None:
    assert complaints(imports_of_tests, TESTS) == []


@pytest.mark.parametrize(
    "source", ["import test_a", "from test_a import b", "from tests.wire import test_a", "import tests.conftest"]
)
def test_the_check_of_test_imports_finds(source: str) -> None:
    assert len(imports_of_tests(source)) == 1
    assert imports_of_tests("from tests.support.models.zoo import TINY") == []
