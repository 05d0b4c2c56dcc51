"""Words per sentence of the documentation: ``python scripts/sentence_lengths.py [PAGE ...]``.

Code blocks, tables, headings and link targets do not count. A code span counts as one word. A list item or a paragraph ends
a sentence, and so do a full stop, a question mark, an exclamation mark and a colon at the end of a line.
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Highest median and 95th percentile of each page.
MEDIAN, PERCENTILE_95 = 15, 28
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|etc|Fig|Eq|No)\.")


def pages() -> list[Path]:
    """Every page that people read: the README, the page for contributors and all of ``docs``."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def paragraphs(text: str) -> list[str]:
    """Return the running text of a Markdown page, one string for each paragraph or list item."""
    text = re.sub(r"^---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *(```|~~~).*?^ *\1", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|<[^>]+>", "", text, flags=re.DOTALL)
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        bare = line.strip()
        if not bare or bare.startswith(("#", "|", "!!!", "???", ":::", "===", "![")):
            found.append([])
        elif _ITEM.match(line):
            found.append([_ITEM.sub("", line, count=1)])
        else:
            found[-1].append(bare)
    return [" ".join(lines) for lines in found if lines]


def sentences(text: str) -> list[str]:
    """Return the sentences of a Markdown page."""
    found = []
    for paragraph in paragraphs(text):
        plain = re.sub(r"`[^`]*`", "code", paragraph)
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
        plain = _ABBREVIATION.sub(r"\1", plain)
        found += re.split(r"(?<=[.?!])[)\"*]*\s+(?=[A-Z0-9`*(\"]|code|farflung)|:\s*$", plain)
    return [one for one in found if words(one)]


def words(sentence: str) -> int:
    return len(re.findall(r"[\w][\w'’/.,%+-]*", sentence))


def percentile_95(lengths: list[int]) -> int:
    return sorted(lengths)[min(int(0.95 * len(lengths)), len(lengths) - 1)]


def main(names: list[str]) -> None:
    """Print one line for each page and one for all; for named pages, their longest sentences too."""
    chosen = [Path(name).resolve() for name in names] or pages()
    everything: list[int] = []
    for page in chosen:
        found = sentences(page.read_text(encoding="utf-8"))
        lengths = [words(one) for one in found]
        everything += lengths
        if lengths:
            print(
                f"{page.relative_to(ROOT)}: median {statistics.median(lengths):g}, 95 % {percentile_95(lengths)}, {len(lengths)}"
            )
        for one in sorted(found, key=words, reverse=True)[:10] if names else []:
            if words(one) > 25:
                print(f"    {words(one)}: {one}")
    print(f"all: median {statistics.median(everything):g} (at most {MEDIAN}), ", end="")
    print(f"95th percentile {percentile_95(everything)} (at most {PERCENTILE_95}), {len(everything)} sentences")


if __name__ == "__main__":
    main(sys.argv[1:])
