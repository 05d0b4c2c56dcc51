"""Limits of folders, files, classes, broad ``except`` and tests; each check is first shown to fail on bad code."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {str(path.relative_to(ROOT / "src/farflung")): path.read_text() for path in (ROOT / "src/farflung").rglob("*.py")}
TESTS = {str(path.relative_to(ROOT / "tests")): path.read_text() for path in (ROOT / "tests").rglob("*.py")}

MAX_FILES_IN_FOLDER = 20
MAX_LINES = 500
MAX_METHODS = 20
MAX_ATTRIBUTES = 12
#: The limits of classes hold in these packages.
LIMITED_CLASSES = ("messages", "step", "worker", "broker", "client")
BROAD_EXCEPTS_PER_1000_LINES = 0.2
MAX_PRIVATE_ACCESSES = 60
#: Folders whose tests are about several modules together: ``scenarios`` in a package, the others at the top.
WHOLE = {"documents", "end_to_end", "packaging", "scenarios"}


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """The tree of ``source``, for several checks in a row."""
    return ast.parse(source)


def full_folders(files: Iterable[str]) -> dict[str, int]:
    """Folders with too many Python files, and how many they have."""
    counts = Counter(str(PurePosixPath(name).parent) for name in files)
    return {folder: count for folder, count in counts.items() if count > MAX_FILES_IN_FOLDER}


def long_files(sources: Mapping[str, str]) -> dict[str, int]:
    lengths = {name: len(text.splitlines()) for name, text in sources.items()}
    return {name: length for name, length in lengths.items() if length > MAX_LINES}


def attributes(cls: ast.ClassDef) -> set[str]:
    """Attributes that the constructor sets, and the fields of a dataclass that can change."""
    found = set()
    decorators = [ast.unparse(decorator) for decorator in cls.decorator_list]
    if any("dataclass" in text and "frozen=True" not in text for text in decorators):
        fields = [node for node in cls.body if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)]
        found |= {ast.unparse(field.target) for field in fields}
    for function in cls.body:
        if isinstance(function, ast.FunctionDef) and function.name in {"__init__", "__post_init__"}:
            stored = (node for node in ast.walk(function) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
            found |= {node.attr for node in stored if ast.unparse(node.value) == "self"}
    return found


def large_classes(source: str) -> dict[str, tuple[int, int]]:
    """Classes with too many methods or attributes, and how many of both they have."""
    found = {}
    for cls in ast.walk(ast.parse(source)):
        if isinstance(cls, ast.ClassDef):
            methods = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in cls.body)
            count = len(attributes(cls))
            if methods > MAX_METHODS or count > MAX_ATTRIBUTES:
                found[cls.name] = (methods, count)
    return found


def broad_excepts(source: str) -> int:
    """Handlers that catch everything and raise nothing."""
    handlers = [node for node in ast.walk(parsed(source)) if isinstance(node, ast.ExceptHandler)]
    quiet = [one for one in handlers if not any(isinstance(node, ast.Raise) for node in ast.walk(one))]
    caught = [{"BaseException"} if one.type is None else {ast.unparse(node) for node in ast.walk(one.type)} for one in quiet]
    return sum(bool(names & {"Exception", "BaseException"}) for names in caught)


def code_lines(source: str) -> int:
    """Lines without blank lines, comments and docstrings."""
    documented: set[int] = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and number not in documented for number, line in lines)


def private_accesses(source: str) -> int:
    """Accesses to attributes like ``x._name`` of anything but ``self`` and ``cls``."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    private = (node for node in found if node.attr.startswith("_") and not node.attr.startswith("__"))
    return sum(ast.unparse(node.value) not in {"self", "cls"} for node in private)


def without_source(tests: Iterable[str], sources: Iterable[str]) -> set[str]:
    """Tests of packages whose name is not that of a module or a subpackage in the same place.

    ``sources``: paths below the package ``farflung``, and those of ``benchmarks`` with this name before them.
    """
    known = {str(PurePosixPath(name).with_suffix("")) for name in sources}
    known |= {str(PurePosixPath(name).parent) for name in known}
    tested = {name: PurePosixPath(name) for name in tests}
    narrow = {name: path for name, path in tested.items() if len(path.parts) > 1 and not WHOLE & set(path.parts)}
    return {
        name
        for name, path in narrow.items()
        if path.name.startswith("test_") and str(path.parent / path.stem.removeprefix("test_")) not in known
    }


def test_folders_have_few_files() -> None:
    assert full_folders(SOURCES) == {}
    assert full_folders(TESTS) == {}


def test_files_are_short() -> None:
    assert long_files(SOURCES) == {}


def test_classes_are_small() -> None:
    limited = {name: text for name, text in SOURCES.items() if name.startswith(LIMITED_CLASSES)}
    found = {f"{name}:{cls}": size for name, text in limited.items() for cls, size in large_classes(text).items()}
    assert found == {}


def test_few_handlers_catch_everything() -> None:
    found = [(broad_excepts(source), code_lines(source)) for source in SOURCES.values()]
    count, lines = (sum(numbers) for numbers in zip(*found, strict=True))
    assert count <= BROAD_EXCEPTS_PER_1000_LINES * lines / 1000


def test_tests_use_public_names() -> None:
    count = sum(map(private_accesses, TESTS.values()))
    assert count <= MAX_PRIVATE_ACCESSES


def test_each_test_names_its_source() -> None:
    benchmarks = (str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks").rglob("*.py"))
    assert without_source(TESTS, [*SOURCES, *benchmarks]) == set()


def test_the_folder_check_counts_each_folder_alone() -> None:
    files = [f"plan/m{i}.py" for i in range(MAX_FILES_IN_FOLDER)]
    assert full_folders([*files, "plan/report/a.py"]) == {}
    assert full_folders([*files, "plan/a.py"]) == {"plan": 21}


def test_the_length_check_finds_long_files() -> None:
    assert long_files({"a.py": "x = 1\n" * MAX_LINES, "b.py": "x = 1\n" * (MAX_LINES + 1)}) == {"b.py": 501}


def class_of(methods: int, attributes: int) -> str:
    body = "\n".join(f"        self.a{i} = 1" for i in range(attributes)) or "        pass"
    return f"class C:\n    def __init__(self):\n{body}\n" + "    def f(self): ...\n" * (methods - 1)


def test_the_class_check_counts_methods_and_attributes() -> None:
    assert large_classes(class_of(MAX_METHODS, MAX_ATTRIBUTES)) == {}
    assert large_classes(class_of(MAX_METHODS + 1, 1)) == {"C": (21, 1)}
    assert large_classes(class_of(2, MAX_ATTRIBUTES + 1)) == {"C": (2, 13)}


def test_the_class_check_counts_fields_that_can_change() -> None:
    fields = "class C:\n" + "".join(f"    a{i}: int\n" for i in range(MAX_ATTRIBUTES + 1))
    assert large_classes(f"@dataclass(slots=True)\n{fields}") == {"C": (0, 13)}
    assert large_classes(f"@dataclass(frozen=True)\n{fields}") == {}


@pytest.mark.parametrize("caught", ["", " Exception", " (KeyError, BaseException)", " Exception as error"])
def test_the_check_of_handlers_finds(caught: str) -> None:
    assert broad_excepts(f"try:\n    f()\nexcept{caught}:\n    g()") == 1
    assert broad_excepts(f"try:\n    f()\nexcept{caught}:\n    g()\n    raise") == 0


def test_the_check_of_handlers_passes_named_errors() -> None:
    assert broad_excepts("try:\n    f()\nexcept (OSError, ValueError):\n    g()") == 0


def test_code_lines_have_no_comments_and_docstrings() -> None:
    assert code_lines('"""Head.\n\nMore.\n"""\n\n# why\nx = 1\ndef f():\n    """Doc."""\n    return x  # here\n') == 3


def test_the_check_of_private_names_finds_those_of_others() -> None:
    assert private_accesses("a._b\na.b._c\nsuper()._d()\nself.a._e = 1") == 4
    assert private_accesses("self._a\ncls._b\na.__dict__\na.b") == 0


def test_the_layout_check_follows_folders() -> None:
    sources = ["plan/model.py", "plan/report/summary.py", "plan/report/__init__.py", "benchmarks/papers/fusionllm.py"]
    fine = ["plan/test_model.py", "plan/report/test_summary.py", "plan/test_report.py", "benchmarks/papers/test_fusionllm.py"]
    assert (
        without_source(
            [*fine, "test_house.py", "plan/scenarios/test_a.py", "end_to_end/test_b.py", "documents/test_c.py"], sources
        )
        == set()
    )
    assert without_source(["plan/test_summary.py"], sources) == {"plan/test_summary.py"}
