"""Write docs/architectures.md from the result of the benchmark: ``python scripts/architectures.py``."""

from __future__ import annotations

import json

from benchmarks.training.architectures import page, page_path


def main() -> None:
    """Write the page."""
    result = page_path().parent / "results" / "architectures.json"
    page_path().write_text(page(json.loads(result.read_text(encoding="utf-8"))["figures"]), encoding="utf-8")


if __name__ == "__main__":
    main()
