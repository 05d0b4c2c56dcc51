"""The files of a release: changelog, metadata of the wheel, security policy, templates of the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import typer

from farflung.cli.cluster import broker, join
from farflung.version import __version__

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def test_the_changelog_has_one_short_entry_for_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(.*?)\]", text, flags=re.MULTILINE) == [__version__]
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 150


def test_the_readme_is_short_and_each_cell_of_the_alternatives_is_linked() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100  # one and a half screens of a text editor
    assert len(re.sub(r"\]\([^)]*\)|<[^>]*>", "", text).split()) <= 800
    table = text.partition("\n## Alternatives\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")][2:]
    assert [row[0] for row in rows] == ["farflung", "torch pipelining", "hivemind", "Petals", "torchft", "exo", "DeepSpeed"]
    assert [cell for row in rows for cell in row[1:] if "](" not in cell] == []


def test_the_metadata_of_the_wheel_are_complete() -> None:
    found = project()
    assert found["license"] == "Apache-2.0"
    assert (ROOT / str(found["readme"])).is_file()
    assert all((ROOT / name).is_file() for name in found["license-files"])  # type: ignore[attr-defined]
    for key in ("description", "keywords", "authors", "classifiers", "urls", "requires-python"):
        assert found[key], key
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= set(found["urls"])  # type: ignore[call-overload]
    classifiers = list(found["classifiers"])  # type: ignore[call-overload]
    assert len(classifiers) == len(set(classifiers))
    assert not [one for one in classifiers if one.startswith("License ::")], "the license expression replaces them"
    lowest = str(found["requires-python"]).removeprefix(">=")
    assert f"Programming Language :: Python :: {lowest}" in classifiers


def test_the_security_policy_names_options_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for role in ("stranger", "member", "submitter", "owner"):
        assert f"| {role} |" in text
    part = typer.Typer()
    broker.register(part)
    join.register(part)
    commands = typer.main.get_group(part).commands
    known = {option for command in commands.values() for one in command.params for option in one.opts} | {"--version"}
    known |= {"--require-hashes"}  # of pip
    assert set(re.findall(r"(--[a-z][a-z-]*)", text)) <= known
    assert f"{__version__.rpartition('.')[0]}.x" in text


def test_templates_are_whole() -> None:
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        text = path.read_text(encoding="utf-8")
        if path.name != "config.yml":
            assert re.match(r"name: .+\ndescription: .+\.\nlabels: \[.+\]\nbody:\n", text), path.name
            assert "  - type: textarea" in text
    assert (ROOT / "CODE_OF_CONDUCT.md").is_file()
