"""Programs in the nodes: placeholders in their arguments, output line by line under their node's name, a broker with workers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farflung.clock import monotonic, sleep
from farflung.emulation.session import Emulation, Node
from farflung.errors import EmulationError, InputError
from farflung.thread_group import ThreadGroup

__all__ = ["expand", "run_each", "start_cluster"]

_PLACEHOLDER = re.compile(r"\{(node|index|address)(?::([^{}]+))?\}")
_PORT = 7070
_PATIENCE = 120.0


def expand(arguments: Sequence[str], node: Node, emulation: Emulation) -> list[str]:
    """``{node}``, ``{index}`` and ``{address}`` of the node that runs the program; ``{address:NAME}`` of another.

    Raises:
        InputError: a placeholder names no node.
    """

    def value(match: re.Match[str]) -> str:
        of = emulation[match[2]] if match[2] else node
        return str({"node": of.name, "index": of.index, "address": of.address}[match[1]])

    return [_PLACEHOLDER.sub(value, argument) for argument in arguments]


def run_each(
    emulation: Emulation, command: Sequence[str], say: Callable[[str], None], variables: Mapping[str, str] | None = None
) -> int:
    """Run a command in every node at once; each line of output goes to ``say`` under the node's name.

    ``variables`` are added to the environment.
    Returns 0, or the exit status of the first node whose command failed.
    """
    running, readers = [], ThreadGroup()
    for node in emulation.nodes.values():
        arguments = expand(command, node, emulation)
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = node.start(arguments, env=variables, text=True, errors="replace", **pipes)
        readers.spawn(f"output-{node.name}", _relay, node.name, process, say)
        running.append(process)
    readers.join()
    for process in running:
        process.wait()
    return next((process.returncode for process in running if process.returncode), 0)


def _relay(name: str, process: subprocess.Popen[str], say: Callable[[str], None]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            say(f"{name}: {line.rstrip()}")


def start_cluster(
    emulation: Emulation, home: Path, broker: str | None = None, program: Sequence[str] = ("-m", "farflung")
) -> list[subprocess.Popen[Any]]:
    """A broker in one node (default: the first) and a worker in every node, each under its node's name.

    ``home`` gets the broker's folder, the submit ticket that commands with FARFLUNG_HOME find, and a log for each program.
    ``program``: what Python runs, before the command of farflung.

    Raises:
        EmulationError: a program ends or does not get ready; the text has the last line of its log.
    """
    if broker is not None and broker not in emulation.nodes:
        raise InputError(f"there is no node {broker!r} for the broker; known are {', '.join(list(emulation.nodes)[:16])}")
    host = emulation[broker] if broker else next(iter(emulation.nodes.values()))
    home.mkdir(parents=True, exist_ok=True)
    serve = ["broker", "--no-web", "--listen", f"0.0.0.0:{_PORT}", "--advertise", host.address]
    started = [_farflung(host, home, "broker", [*program, *serve])]
    ticket = _until(started[0], home / "broker.log", r"farflung join (\S+)\n")[1]
    for node in emulation.nodes.values():  # not an argument: those of a process can be read by everybody on the machine
        join = [*program, "join", "--name", node.name]
        started.append(_farflung(node, home, f"worker-{node.name}", join, {"FARFLUNG_TICKET": ticket}))
    for process, node in zip(started[1:], emulation.nodes.values(), strict=True):
        _until(process, home / f"worker-{node.name}.log", "joined the broker at")
    return started


def _farflung(
    node: Node, home: Path, name: str, arguments: Sequence[str], variables: Mapping[str, str] | None = None
) -> subprocess.Popen[Any]:
    with (home / f"{name}.log").open("wb") as log:
        return node.start(
            [sys.executable, "-u", *arguments],
            env={"FARFLUNG_HOME": str(home), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _until(process: subprocess.Popen[Any], log: Path, pattern: str) -> re.Match[str]:
    end = monotonic() + _PATIENCE
    while True:
        ended = process.poll() is not None
        text = log.read_text(encoding="utf-8", errors="replace")
        if (found := re.search(pattern, text)) is not None:
            return found
        if ended or monotonic() > end:
            last = (text.strip().splitlines() or ["(nothing)"])[-1]
            raise EmulationError(f"{log.stem} {'ended' if ended else 'is not ready'}: {last}; {log} has the rest")
        sleep(0.05)
