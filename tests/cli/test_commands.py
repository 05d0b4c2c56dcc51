"""The list of commands is complete, and nothing but the chosen command's module is imported."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

import farflung.cli
from farflung.cli.commands import COMMANDS
from farflung.cli.main import main

#: Prints the modules that a command line has imported, whatever the command printed before.
IMPORTED = """
import json, sys
from farflung.cli.main import main
try:
    main({arguments!r})
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(arguments=list(arguments))], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_every_registered_command_is_listed() -> None:
    registered = {}
    for found in pkgutil.walk_packages(farflung.cli.__path__, "farflung.cli."):
        register = getattr(import_module(found.name), "register", None)
        if register is not None:
            part = typer.Typer()
            register(part)
            registered |= dict.fromkeys(typer.main.get_group(part).commands, found.name.removeprefix("farflung.cli."))
    assert {name: entry.module for name, entry in COMMANDS.items()} == registered


#: Commands that print a log until they are ended. `status` and `ticket issue` print what a broker's log says as JSON.
LASTING = {"broker", "join", "serve"}


def every_command() -> dict[str, Any]:
    """All commands and sub-commands, by the words that call them."""
    found: dict[str, Any] = {}
    for name, entry in COMMANDS.items():
        part = typer.Typer()
        import_module(f"farflung.cli.{entry.module}").register(part)
        command = typer.main.get_group(part).commands[name]
        inside = getattr(command, "commands", None)
        found |= {name: command} if inside is None else {f"{name} {own}": one for own, one in inside.items()}
    return found


def test_every_command_that_prints_facts_prints_json_too() -> None:
    commands = every_command()
    assert {name for name, command in commands.items() if not any("--json" in one.opts for one in command.params)} == LASTING


def test_every_command_and_option_has_a_line_of_help() -> None:
    for name, command in every_command().items():
        first = (command.help or "").strip().splitlines()[0]
        assert first[0].isupper(), name
        assert "." in first, name
        assert all(one.help for one in command.params), name


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_summary_is_one_short_sentence(name: str) -> None:
    assert COMMANDS[name].summary.endswith(".")
    assert len(COMMANDS[name].summary) <= 64  # one line of an 80-column terminal


def test_help_imports_no_command() -> None:
    loaded = imported("--help")
    assert {name for name in loaded if name.startswith("farflung.")} <= {
        "farflung.cli",
        "farflung.cli.commands",
        "farflung.cli.main",
        "farflung.errors",
        "farflung.version",
    }
    assert not loaded & {"numpy", "torch", "pydantic", "grpc", "rich.console"}


def test_a_command_imports_its_own_module_only() -> None:
    loaded = imported("pause", "--help")
    assert "farflung.cli.cluster.owner" in loaded
    assert not loaded & {"farflung.cli.planning", "farflung.cli.runs", "farflung.cli.trial", "farflung.simulator", "torch"}


#: What ``status`` and the registration of a worker do without.
HEAVY = {
    "numpy",
    "torch",
    "pydantic",
    "psutil",
    "scipy",
    "networkx",
    "sqlite3",
    "farflung.plan",
    "farflung.job",
    "farflung.graph",
}


def test_status_imports_only_what_the_request_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    loaded = imported("status")
    assert "farflung.client.control" in loaded
    assert not loaded & {*HEAVY, "rich.console", "farflung.protocol.events"}


def test_a_worker_registers_before_it_loads_pytorch() -> None:
    program = """
        import json, sys
        from farflung.cli.cluster import join
        from farflung.cli.cluster.observation import WorkerObservation
        from farflung.errors import SecurityError
        from farflung.units import Seconds
        from farflung.worker import membership
        from farflung.worker.reconnect import Service

        def enter():
            print(json.dumps(sorted(sys.modules)))
            raise SecurityError("enough")

        observation = WorkerObservation("w", None, print)
        try:
            Service(enter, join.WorkerOptions(), print, phase=lambda text: None, observer=observation).run(Seconds(1.0))
        except SecurityError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    modules, error = done.stdout.splitlines()
    assert error == "enough"
    assert not set(json.loads(modules)) & HEAVY


@pytest.mark.parametrize("arguments", [["status"], ["status", "--help"], ["status", "--json"]])
def test_absent_options_need_no_conversion(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    assert "pydantic" not in imported(*arguments)


def test_the_help_lists_commands_by_topic() -> None:
    done = subprocess.run([sys.executable, "-m", "farflung", "--help"], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    topics = [line for line in lines if line and not line.startswith(" ")]
    assert topics[1:] == ["Options:", "Cluster:", "Runs:", "This worker:", "Planning:", "Trying it out:"]
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "usage", "missing"),
    [
        (["watch"], "farflung watch [OPTIONS] RUN", "RUN"),
        (["report"], "farflung report [OPTIONS] RUNS...", "RUNS"),
        (["checkpoint", "export"], "farflung checkpoint export [OPTIONS] RUN OUT", "RUN"),
    ],
)
def test_errors_spell_arguments_as_the_reference_does(
    words: list[str], usage: str, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    err = capsys.readouterr().err
    assert err.startswith(f"Usage: {usage}\n")
    assert f"Missing argument '{missing}'" in err
