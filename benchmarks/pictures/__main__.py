"""``python -m benchmarks.pictures``: draws the figures of the page on benchmarks from the results that are stored beside it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pictures.catalog import draw_all

RESULTS = Path(__file__).resolve().parents[2] / "docs/results"

if __name__ == "__main__":
    draw_all(RESULTS, RESULTS)
