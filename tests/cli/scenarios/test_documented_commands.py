"""Every ``farflung`` command in the README, the pages and the examples is one: its name, arguments and options are known."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from benchmarks.__main__ import app as benchmarks
from farflung.cli.main import app
from tests.support.documents.documented_commands import BENCHMARKS, CASES, PAGES, ROOT, SUDO, commands


def known(line: str) -> tuple[Any, list[str]]:
    """The command of ``line``, which has all the options there, and the words after its name."""
    program = benchmarks if line.startswith(BENCHMARKS) else app
    command: Any = typer.main.get_command(program)
    words = shlex.split(line.removeprefix(f"{BENCHMARKS} ").removeprefix("farflung "))
    while words and hasattr(command, "get_command"):  # a group; typer may bring a click of its own
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command, words = found, words[1:]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    assert not hasattr(command, "get_command") or set(words) <= options, f"{line}: {words[:1]} is no command"
    own = words[: words.index("--")] if "--" in words else words
    for word in own:
        assert not word.startswith("--") or word in options, f"{line}: {word} is no option of {command.name}"
    return command, words


def parse(line: str) -> None:
    """Let the command's own parser read ``line``; nothing is run."""
    command, words = known(line)
    # a group may have options of its own, such as --install-completion
    assert not hasattr(command, "get_command") or words, f"{line}: a command of {command.name} is missing"
    command.make_parser(click.Context(command)).parse_args(words)


def mentioned(text: str) -> list[str]:
    """What stands in the text as ``farflung ...``, outside of code blocks; ``a | b`` are two."""
    found = re.findall(rf"`(?:{SUDO})?((?:farflung|{BENCHMARKS}) [^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [" ".join(line.split()).replace("[", "").replace("]", "") for line in found]
    return sorted({f"{line.split(' | ')[0]}" for line in lines})


@pytest.mark.parametrize(("page", "line"), CASES, ids=[f"{page.name}: {line}" for page, line in CASES])
def test_a_documented_command_is_one(page: Path, line: str) -> None:
    parse(line)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_what_is_mentioned_is_a_command(page: Path) -> None:
    for line in mentioned(page.read_text(encoding="utf-8")):
        known(line)


@pytest.mark.parametrize("line", ["farflung sumbit", "python -m benchmarks loss --sett steps=3", "farflung --verbose"])
def test_what_is_mentioned_and_no_command_is_found(line: str) -> None:
    with pytest.raises(AssertionError):
        known(line)


def test_every_command_and_option_is_on_a_page() -> None:
    """Of an option that can be turned off one form is enough. ``--help`` and hidden options need none."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    missing = []
    for name, command in every_command(typer.main.get_command(app)):
        missing += [] if re.search(rf"farflung(?: \S+ \|)* {name}\b", text) else [name]
        for parameter in (one for one in command.params if not getattr(one, "hidden", False)):
            forms = [form for form in (*parameter.opts, *parameter.secondary_opts) if form.startswith("--") and form != "--help"]
            missing += [f"{name} {forms[0]}"] if forms and not any(re.search(rf"{form}\b", text) for form in forms) else []
    assert missing == []


def every_command(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "commands"):
            yield from every_command(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def test_root_finds_what_an_environment_holds() -> None:
    bare = [page.name for page in PAGES if re.search(r"sudo farflung", page.read_text(encoding="utf-8"))]
    assert bare == []


def test_the_pages_are_read() -> None:
    assert {page.name for page, _ in CASES} >= {"README.md", "machines.md", "demo.md", "gpt2-lora.toml"}
    assert "farflung stop RUN --now" in [line for _, line in CASES]
    assert "farflung watch RUN" in commands("```\nfarflung status | watch RUN | stop RUN\n```")


@pytest.mark.parametrize("line", ["farflung sumbit JOB", "farflung stop RUN --soon", "farflung ticket withdraw ID", "farflung"])
def test_what_is_no_command_is_found(line: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        parse(line)
