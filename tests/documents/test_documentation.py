"""The documentation's links lead somewhere, its rooms and its words are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def broken_links(page: Path, text: str) -> list[str]:
    targets = [target.partition("#")[0] for target in LINK.findall(text)]
    return [target for target in targets if target and "://" not in target and not (page.parent / target).exists()]


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("")
    text = "[a](there.md) [b](there.md#part) [c](https://example.org) [d](gone.md) [e](#part)"
    assert broken_links(tmp_path / "page.md", text) == ["gone.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_exist(page: Path) -> None:
    named = re.findall(r"`((?:src|docs|tests)/[\w./-]+\.\w+)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_pages_that_the_code_names_exist() -> None:
    named = {
        (path.name, page)
        for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
        for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert {(name, page) for name, page in named if not (ROOT / page).exists()} == set()


def test_the_table_of_rooms_has_every_room() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| \d+ \| ([^|]*) \|", text, flags=re.MULTILINE)
    listed = {name for row in table for name in re.findall(r"`(\w+)`", row)}
    package = ROOT / "src/farflung"
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    files = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    assert listed == rooms | files


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs/decisions"
    listed = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in folder.glob("0*.md")}


def test_the_glossary_is_sorted_and_has_each_word_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    words = [row.strip() for row in rows if row.strip() not in ("word", "---")]
    assert words == sorted(set(words), key=str.lower)
    assert len(words) > 40
