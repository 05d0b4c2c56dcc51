"""The commands that the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.toml")])


#: As root, who finds what the user finds: ``sudo`` has a path of its own, without virtual environments.
BENCHMARKS = "python -m benchmarks"
SUDO = re.escape('sudo env "PATH=$PATH" ')


def commands(text: str) -> list[str]:
    """Lines that begin with ``farflung`` or ``python -m benchmarks`` (or with ``sudo env ...`` before it), in code blocks; in a
    text without any, such as an example, those after ``#`` and two spaces.

    Comments and the brackets of ``[...]`` are left out.
    """
    blocks = re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL)
    before = "" if blocks else "#  +"
    found = [
        line
        for block in blocks or [text]
        for line in re.findall(rf"^{before}(?:{SUDO})?((?:farflung|{BENCHMARKS}) .*)$", block, flags=re.MULTILINE)
    ]
    found = [re.split(r"\s+#|\s{3,}", line)[0].replace("[", "").replace("]", "") for line in found]
    return [part for line in found for part in alternatives(line)]


def alternatives(line: str) -> list[str]:
    """``farflung a | b`` is two commands."""
    program = BENCHMARKS if line.startswith(BENCHMARKS) else "farflung"
    return [f"{program} {part.strip()}" for part in line.removeprefix(f"{program} ").split("|")]


CASES = [(page, line) for page in PAGES for line in commands(page.read_text(encoding="utf-8"))]
