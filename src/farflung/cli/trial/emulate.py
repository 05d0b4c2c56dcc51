"""``farflung emulate``: programs on an emulated network, one namespace for each device of a topology."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.options import EMULATED
from farflung.cli.planning.inputs import read_time
from farflung.cli.trial.emulation_facts import EmulationFacts
from farflung.clock import monotonic
from farflung.errors import InputError
from farflung.thread_group import ThreadGroup
from farflung.units import Seconds

if TYPE_CHECKING:
    from farflung.cluster import Network
    from farflung.emulation import Emulation, Node

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(emulate)


def emulate(
    topology: Annotated[str | None, typer.Argument(help="Topology: a TOML file or a preset.")] = None,
    command: Annotated[list[str] | None, typer.Argument(help="Command to run, after -- (default: wait for Ctrl-C).")] = None,
    node: Annotated[str | None, typer.Option(help="Node that runs the command (default: the first node).")] = None,
    each: Annotated[bool, typer.Option("--each", help="Run the command in every node at once.")] = False,
    beside: Annotated[
        list[str] | None, typer.Option("--with", help='"NODE: COMMAND" to run at the same time (repeatable).')
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Start a broker and a worker in every node first.")] = False,
    broker: Annotated[str | None, typer.Option(help="With --cluster: node of the broker (default: the first node).")] = None,
    folder: Annotated[
        Path | None, typer.Option("--home", help="With --cluster: folder of the broker (default: a new one).")
    ] = None,
    counters: Annotated[
        bool, typer.Option("--counters", help="Print the traffic between each pair of nodes at the end.")
    ] = False,
    every: Annotated[str | None, typer.Option(help='With --counters: also print at this interval, e.g. "2 s".')] = None,
    seed: Annotated[int, typer.Option(help="Random seed of packet loss and jitter.")] = 0,
    show: Annotated[bool, typer.Option("--list", help="List the emulations on this machine.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove the remains of killed emulations.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print facts as one JSON object per line; commands print to standard error.")
    ] = False,
) -> None:
    """Run a command on an emulated network (Linux, root): real programs, slow links.

    Each device of the topology becomes a network namespace. In the command, {node}, {index} and {address} stand for the node that
    runs it, and {address:NAME} for the address of another node. The network is removed at the end. See docs/emulation.md.
    """
    from farflung.cluster import Network
    from farflung.emulation import Emulation, EmulationOptions
    from farflung.emulation.kernel import require_root

    facts = EmulationFacts(as_json=as_json)
    if show or clean:
        _housekeeping(facts, clean)
        return
    if topology is None:
        raise InputError("which topology? write farflung emulate TOPOLOGY -- COMMAND")
    if each and (node is not None or not command):
        raise InputError("--each runs a command in every node: write it after --, and leave --node out")
    if (broker or folder) and not cluster:
        raise InputError("--broker and --home belong to --cluster: add --cluster")
    if every is not None and not counters:
        raise InputError("--every says how often to show counters: add --counters")
    _check_place(topology, command or [])
    network = Network.named(topology)
    beat = read_time(every, "--every", "2 s")
    require_root()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Emulation(network, EmulationOptions(seed=seed)) as emulation:
        variables = _cluster(emulation, facts, folder, broker, topology, given=bool(command)) if cluster else {}
        for text in beside or ():
            _beside(emulation, facts, text, variables)
        emulation.play()
        begin, over, threads = monotonic(), threading.Event(), ThreadGroup()
        threads.spawn("timeline", _announce, network, facts, over)
        if beat is not None:
            threads.spawn("counters", _watch, emulation, facts, beat, over)
        try:
            chosen = None if each else emulation[node or next(iter(emulation.nodes))]
            status = _run(emulation, facts, command or [], chosen, variables)
        finally:
            over.set()
            threads.join()
            if counters:
                facts.counters(emulation.counters(), Seconds(monotonic() - begin), end=True)
    if status:
        raise typer.Exit(status)


def _check_place(topology: str, command: Sequence[str]) -> None:
    if not command and "/" not in topology and not Path(topology).exists() and shutil.which(topology):
        raise InputError(f"{topology!r} is where the topology belongs: write farflung emulate TOPOLOGY -- {topology} ...")


def _run(
    emulation: Emulation, facts: EmulationFacts, command: Sequence[str], node: Node | None, variables: Mapping[str, str]
) -> int:
    """Run the command in ``node`` (``None``: in each node). Return its exit status."""
    from farflung.emulation.programs import expand, run_each

    if not command:
        _wait(emulation, facts)
        return 0
    if node is None:
        return run_each(emulation, command, facts.line, variables)
    process = node.start(expand(command, node, emulation), env=variables, stdout=facts.command_output)
    status = process.wait()
    return status if status >= 0 else 128 - status


def _wait(emulation: Emulation, facts: EmulationFacts) -> None:
    """Print how to enter the nodes, and wait for Ctrl-C."""
    facts.nodes(emulation)
    try:
        signal.pause()
    except KeyboardInterrupt:
        return


def _cluster(
    emulation: Emulation, facts: EmulationFacts, folder: Path | None, broker: str | None, topology: str, *, given: bool
) -> dict[str, str]:
    """Start broker and workers. Return the environment of programs in the nodes."""
    from farflung.emulation.programs import start_cluster

    home = folder or Path(tempfile.mkdtemp(prefix="farflung-emulation-"))
    facts.cluster(emulation, home)
    start_cluster(emulation, home, broker)
    if not given:
        facts.remedy(home)
    return {"FARFLUNG_HOME": str(home), EMULATED: topology}


def _beside(emulation: Emulation, facts: EmulationFacts, text: str, variables: Mapping[str, str]) -> None:
    from farflung.emulation.programs import expand

    name, colon, rest = text.partition(":")
    if not colon or not rest.strip():
        raise InputError(f'--with {text!r}: write "NODE: COMMAND"')
    node = emulation[name.strip()]
    command = expand(shlex.split(rest), node, emulation)
    node.start(command, env=variables, stdin=subprocess.DEVNULL, stdout=facts.command_output)


def _watch(emulation: Emulation, facts: EmulationFacts, beat: float, over: threading.Event) -> None:
    from farflung.errors import EmulationError

    begin = monotonic()
    while not over.wait(beat):
        try:
            facts.counters(emulation.counters(), Seconds(monotonic() - begin))
        except EmulationError:
            return  # the end says it


def _announce(network: Network, facts: EmulationFacts, over: threading.Event) -> None:
    """Print each change of the timeline when it takes effect."""
    begin = monotonic()
    for change in network.timeline:
        if over.wait(max(begin + change.at - monotonic(), 0.0)):
            return
        facts.change(network, change)


def _housekeeping(facts: EmulationFacts, clean: bool) -> None:
    from farflung.emulation.kernel import require_root
    from farflung.emulation.records import listed, sweep

    require_root()
    if clean:
        facts.removed(sweep(wait=2.0))
    else:
        facts.emulations(listed())
