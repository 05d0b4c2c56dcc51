"""The reference pages are what their generator writes, and every key of a job file has a meaning there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
PAGES = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    assert page == PAGES[name](), "run python scripts/reference.py"


@pytest.mark.parametrize("name", PAGES)
def test_every_row_has_a_meaning(name: str) -> None:
    rows = [line for line in (FOLDER / name).read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if not row.rstrip("| ").rpartition("| ")[2] or row.endswith("|  |")] == []


def test_keys_have_types_defaults_and_bounds() -> None:
    text = (FOLDER / "job.md").read_text(encoding="utf-8")
    for start in (
        '| `copies` | integer from 0 to 8 or `"auto"` | `"auto"` |',
        "| `recipe` | text | required |",
        "| `betas` | list of 2 numbers | `[0.9, 0.999]` |",
        '| `again` | true or false or `"auto"` | `"auto"` |',
        "| `workers` | integer from 1 | none |",
    ):
        assert start in text


def test_options_have_types_defaults_and_bounds() -> None:
    text = (FOLDER / "commands.md").read_text(encoding="utf-8")
    assert "| `--listen` | text | `0.0.0.0:7070` |" in text
    assert "| `--verbose`, `-v` |" in text
    assert re.search(r"^\| `--steps` \| integer \| x&gt;=1|^\| `--steps` \| integer \| x>=1", text, flags=re.MULTILINE)
