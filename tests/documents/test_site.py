"""The documentation site builds without a broken link, works offline, and has every page; pages are short sentences."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
#: Attributes and functions by which a page or a style sheet loads something.
LOADED = re.compile(r"""(?:\bsrc=|<link[^>]*\bhref=|url\(|@import\s+)["']?(https?:)?//""")
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "sentence_lengths.py"))


def build(place: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of ``place``; the network is out of reach for whatever asks a proxy."""
    environment = {**os.environ, "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=250, check=False)


def listed(nav: object) -> Iterator[str]:
    """The pages of the navigation."""
    if isinstance(nav, str):
        yield nav
    for one in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from listed(one)


@pytest.mark.timeout(300)
def test_the_site_builds_strictly_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="the extra 'docs' is not installed")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    pages = [page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md") if page.name != "README.md"]
    assert [page for page in pages if not (site / page).exists()] == []
    loading = [
        f"{path.relative_to(site)}: {found[0]}"
        for path in (*site.rglob("*.html"), *site.rglob("*.css"))
        for found in LOADED.finditer(path.read_text(encoding="utf-8"))
    ]
    assert loading == []
    text = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert all(name in text for name in ("farflung.train", "batch_fn", "StepRecord", "TrainResult", "exit_code"))


def test_a_broken_link_and_a_broken_anchor_fail_the_build(tmp_path: Path) -> None:
    """Two pages with the settings of the whole site: to build a hundred pages takes many seconds."""
    pytest.importorskip("zensical", reason="the extra 'docs' is not installed")
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    (tmp_path / "zensical.toml").write_text(re.sub(r"^nav = \[.*?^\]\n", "", settings, flags=re.DOTALL | re.MULTILINE))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "jobs.md").write_text("# Jobs\n\n## Some part\n")
    page = tmp_path / "docs" / "index.md"
    page.write_text("# Start\n\n[jobs](jobs.md) and [part](jobs.md#some-part)\n")
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page.write_text("# Start\n\n[gone](gone.md) and [part](jobs.md#no-such-part)\n")
    done = build(tmp_path)
    assert done.returncode != 0
    assert "page does not exist" in done.stdout + done.stderr
    assert "anchor does not exist" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<script src="https://unpkg.com/x.js">', True),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', True),
        ("a { background: url(https://example.org/x.png) }", True),
        ('<a href="https://example.org">', False),
        ('<img src="../images/cluster.svg">', False),
    ],
)
def test_what_is_loaded_from_another_host_is_found(text: str, found: bool) -> None:
    assert (LOADED.search(text) is not None) == found


def test_the_navigation_has_every_page() -> None:
    """Decisions are listed on a page of their own."""
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert set(listed(CONFIG["nav"])) == {page for page in pages if not re.match(r"decisions/\d", page)}


def test_pages_link_inside_the_documentation() -> None:
    """What lies outside of ``docs`` is not on the site."""
    leading_out = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in DOCS.rglob("*.md")
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).resolve().is_relative_to(DOCS)
    ]
    assert leading_out == []


def test_pictures_exist_and_describe_themselves() -> None:
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for text, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            assert len(text.split()) > 3, f"{page.name}: {target} needs a description"
    for picture in (DOCS / "images").glob("*.svg"):
        text = picture.read_text(encoding="utf-8")
        assert "<title" in text and "<desc" in text, picture.name  # noqa: PT018
        assert not re.search(r"(?:href|src)=\"https?:", text), picture.name


def test_sentences_are_short() -> None:
    """On each page, so over all of them too; the script lists the longest sentences of a page."""
    total = 0
    for page in SCRIPT["pages"]():
        lengths = [SCRIPT["words"](one) for one in SCRIPT["sentences"](page.read_text(encoding="utf-8"))]
        total += len(lengths)
        if lengths:
            assert statistics.median(lengths) <= SCRIPT["MEDIAN"] == 15, page
            assert SCRIPT["percentile_95"](lengths) <= SCRIPT["PERCENTILE_95"] == 28, page
    assert total > 1500


def test_how_sentences_are_counted() -> None:
    text = (
        "# A heading of many words\n\nOne two three. Four `code of words` six [seven eight](x.md#a.b)! farflung runs:\n\n"
        "- An item, e.g. this one\n  goes on.\n\n| a | table |\n| --- | --- |\n\n```\na block. Of code.\n```\n\nThe end\n"
    )
    assert [SCRIPT["words"](one) for one in SCRIPT["sentences"](text)] == [3, 5, 2, 7, 2]
    assert SCRIPT["percentile_95"](list(range(1, 101))) == 96
