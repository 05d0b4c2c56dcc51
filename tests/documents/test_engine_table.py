"""The page of operators by engine is what the engines say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "engine_table.py"))
TEXT = SCRIPT["PAGE"].read_text(encoding="utf-8")


def test_the_page_is_current() -> None:
    assert SCRIPT["engine_page"](TEXT) == TEXT, "run python scripts/engine_table.py"


def test_the_page_has_all_engines_and_operators() -> None:
    found = SCRIPT["read_page"](TEXT)
    assert list(found) == ["torch", "jax", "reference"]
    assert found["reference"][0] < found["torch"][0]
    assert "reshape" in found["jax"][0]
    assert "grid_sampler" not in found["reference"][0]


def test_an_engine_that_is_not_installed_keeps_its_column() -> None:
    changed = TEXT.replace("| `reshape` | yes | yes | yes |", "| `reshape` | no | yes | no |")
    assert changed != TEXT
    assert SCRIPT["engine_page"](changed) == TEXT
