"""Every thread has a name and a row in the table of docs/architecture.md."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

from tests.support.documents.thread_table import Row, rows, surviving

SOURCE = Path(__file__).resolve().parent.parent / "src" / "farflung"
#: The only module that may create a thread for others.
GROUP = "thread_group.py"


def pattern(name: ast.expr | None) -> str:
    """The constant parts of a thread's name, with ``*`` for what is inserted (empty: it has no constant part)."""
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return name.value
    if isinstance(name, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "*" for part in name.values]
        return "".join(parts) if any(part != "*" for part in parts) else ""
    return ""


def created(source: str) -> list[str]:
    """The names of the threads that ``source`` creates; of one without a name that can be read, ``line N: nameless``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if called in {"spawn", "later"} and node.args:
            name = node.args[{"spawn": 0, "later": 1}[called]]
        elif called == "Thread":
            name = named.get("name")
        elif called == "ThreadPoolExecutor":
            name = named.get("thread_name_prefix")
        elif called == "Timer":
            name = None
        else:
            continue
        found.append(pattern(name) or f"line {node.lineno}: nameless")
    return found


def test_every_thread_has_a_row_and_every_row_a_thread() -> None:
    sources = [path for path in SOURCE.rglob("*.py") if path.name != GROUP]
    threads = {(name, str(path.relative_to(SOURCE))) for path in sources for name in created(path.read_text())}
    table = {(row.name, row.file) for row in rows()}
    assert sorted(threads - table) == [], "threads without a row"
    assert sorted(table - threads) == [], "rows without a thread"


def test_a_row_has_all_columns() -> None:
    assert [row.text for row in rows() if row.text.count("|") != 5 or "| |" in row.text] == []


def test_a_surviving_thread_is_found_with_its_row() -> None:
    before, go = threading.enumerate(), threading.Event()
    table = [Row("lend-*", "a.py", "the row"), Row("len", "b.py", "another row")]
    thread = threading.Thread(target=go.wait, name="lend-b")
    thread.start()
    try:
        assert surviving(before, table, seconds=0.0) == ["lend-b: the row"]
        assert surviving([*before, thread], table, seconds=0.0) == []
    finally:
        go.set()
    assert surviving(before, table) == [], "it was about to end"


def test_the_table_is_read() -> None:
    page = "# A\n\n## Threads\n\n| thread | file |\n| --- | --- |\n| `a-*` | `b/c.py` | d |\n\n## Next\n| `e` | `f` | g |\n"
    assert rows(page) == [Row("a-*", "b/c.py", "| `a-*` | `b/c.py` | d |")]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("threading.Thread(target=f, name='one')", ["one"]),
        ("Thread(name=f'dial-{peer}', target=f).start()", ["dial-*"]),
        ("self._threads.spawn('beats', f)", ["beats"]),
        ("self._threads.spawn(f'lend-{peer}', f, peer)", ["lend-*"]),
        ("self._threads.later(1.0, f'return-{run}', f)", ["return-*"]),
        ("ThreadPoolExecutor(4, thread_name_prefix='dial')", ["dial"]),
        ("threading.Thread(target=f)", ["line 1: nameless"]),
        ("threading.Timer(3.0, f)", ["line 1: nameless"]),
        ("self._threads.spawn(name, f)", ["line 1: nameless"]),
        ("ThreadPoolExecutor(4)", ["line 1: nameless"]),
        ("group.spawn(f'{role}', f)", ["line 1: nameless"]),
        ("start(f)", []),
    ],
)
def test_the_check_finds(source: str, names: list[str]) -> None:
    assert created(source) == names
