"""Every stored figure shows the stored results, and stands on the page on benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.pictures.catalog import PICTURES, draw_all, read
from benchmarks.pictures.charts import draw

DOCS = Path(__file__).resolve().parents[3] / "docs"
RESULTS = DOCS / "results"


def words(picture: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", list(PICTURES))
def test_the_stored_figure_shows_the_stored_result(name: str, tmp_path: Path) -> None:
    draw(PICTURES[name](lambda result: read(RESULTS / f"{result}.json")), tmp_path / f"{name}.svg")
    found = words(tmp_path / f"{name}.svg")
    assert len(found) > 5
    assert words(RESULTS / f"{name}.svg") == found, "draw it again: python -m benchmarks.pictures"


def test_every_stored_figure_is_on_the_page() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"!\[[^\]]+\]\(results/([\w-]+\.svg)\)", page))
    assert shown == {path.name for path in RESULTS.glob("*.svg")}


def test_all_figures_are_drawn_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {name: PICTURES[name] for name in ("compression", "web")}
    monkeypatch.setattr("benchmarks.pictures.catalog.PICTURES", chosen)
    draw_all(RESULTS, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compression.svg", "web.svg"]
