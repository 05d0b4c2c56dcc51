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
from farflung.clock import monotonic
from farflung.errors import InputError
from farflung.thread_group import ThreadGroup
from farflung.units import Bytes, Seconds, counted

if TYPE_CHECKING:
    from farflung.cluster import Network
    from farflung.emulation import Emulation

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
) -> None:
    """Run a command on an emulated network (Linux, root): real programs, slow links.

    Each device of the topology becomes a network namespace. In the command, {node}, {index} and {address} stand for the node that
    runs it, and {address:NAME} for the address of another node. The network is removed at the end. See docs/emulation.md.
    """
    from farflung.cluster import Network
    from farflung.emulation import Emulation, EmulationOptions
    from farflung.emulation.kernel import require_root

    if show or clean:
        _housekeeping(clean)
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
        variables = _cluster(emulation, folder, broker, topology, given=bool(command)) if cluster else {}
        for text in beside or ():
            _beside(emulation, text, variables)
        emulation.play()
        over, threads = threading.Event(), ThreadGroup()
        threads.spawn("timeline", _announce, network, over)
        if beat is not None:
            threads.spawn("counters", _watch, emulation, beat, over)
        try:
            status = _run(emulation, command or [], None if each else emulation[node or next(iter(emulation.nodes))], variables)
        finally:
            over.set()
            threads.join()
            if counters:
                typer.echo(_table(emulation, end=True), err=True)
    if status:
        raise typer.Exit(status)


def _check_place(topology: str, command: Sequence[str]) -> None:
    if not command and "/" not in topology and not Path(topology).exists() and shutil.which(topology):
        raise InputError(f"{topology!r} is where the topology belongs: write farflung emulate TOPOLOGY -- {topology} ...")


def _run(emulation: Emulation, command: Sequence[str], node: object, variables: Mapping[str, str]) -> int:
    """Run the command in ``node`` (``None``: in each node). Return its exit status."""
    from farflung.emulation import Node
    from farflung.emulation.programs import expand, run_each

    if not command:
        _wait(emulation)
        return 0
    if not isinstance(node, Node):
        return run_each(emulation, command, typer.echo, variables)
    process = node.start(expand(command, node, emulation), env=variables)
    status = process.wait()
    return status if status >= 0 else 128 - status


def _wait(emulation: Emulation) -> None:
    """Print how to enter the nodes, and wait for Ctrl-C."""
    import os

    for node in emulation.nodes.values():
        enter = f"nsenter --net=/proc/{os.getpid()}/fd/{emulation.namespace(node.index)}"
        typer.echo(f"{node.name:24} {node.address:14} {enter} COMMAND")
    typer.echo("Ctrl-C removes the network.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        return


def _cluster(emulation: Emulation, folder: Path | None, broker: str | None, topology: str, *, given: bool) -> dict[str, str]:
    """Start broker and workers. Return the environment of programs in the nodes."""
    from farflung.emulation.programs import start_cluster

    home = folder or Path(tempfile.mkdtemp(prefix="farflung-emulation-"))
    typer.echo(f"emulation: broker and {counted(len(emulation.nodes), 'worker')}; runs and logs in {home}", err=True)
    start_cluster(emulation, home, broker)
    if not given:
        typer.echo(f"enter a node (below) with FARFLUNG_HOME={shlex.quote(str(home.resolve()))} before the command: farflung")
        typer.echo("submit, status, watch and so on find the broker by it, without a ticket")
    return {"FARFLUNG_HOME": str(home), EMULATED: topology}


def _beside(emulation: Emulation, text: str, variables: Mapping[str, str]) -> None:
    from farflung.emulation.programs import expand

    name, colon, rest = text.partition(":")
    if not colon or not rest.strip():
        raise InputError(f'--with {text!r}: write "NODE: COMMAND"')
    node = emulation[name.strip()]
    node.start(expand(shlex.split(rest), node, emulation), env=variables, stdin=subprocess.DEVNULL)


def _watch(emulation: Emulation, beat: float, over: threading.Event) -> None:
    from farflung.errors import EmulationError

    begin = monotonic()
    while not over.wait(beat):
        try:
            typer.echo(f"after {Seconds(monotonic() - begin)}:\n{_table(emulation)}", err=True)
        except EmulationError:
            return  # the end says it


def _announce(network: Network, over: threading.Event) -> None:
    """Print a line for each change of the timeline when it takes effect."""
    begin = monotonic()
    for change in network.timeline:
        if over.wait(max(begin + change.at - monotonic(), 0.0)):
            return
        typer.echo(f"emulation: after {change.at}: {network.told(change)}", err=True)


def _table(emulation: Emulation, *, end: bool = False) -> str:
    """Print the traffic. At the ``end``, the queues are empty."""
    queue = "" if end else f" {'queue':>8}"
    lines = [f"{'from':20} {'to':20} {'bytes':>10} {'packets':>9} {'lost':>7} {'dropped':>7} {'refused':>7}{queue}"]
    lines += [
        f"{pair.source:20} {pair.target:20} {Bytes(pair.bytes)!s:>10} {pair.packets:>9} {pair.lost:>7} {pair.dropped:>7} "
        f"{pair.refused:>7}" + ("" if end else f" {Seconds(pair.queued_seconds)!s:>8}")
        for pair in emulation.counters()
    ]
    return "\n".join(lines)


def _housekeeping(clean: bool) -> None:
    from farflung.emulation.kernel import require_root
    from farflung.emulation.records import listed, sweep

    require_root()
    if clean:
        swept = sweep(wait=2.0)
        typer.echo(f"removed what {counted(len(swept), 'emulation')} had left" if swept else "nothing was left behind")
        return
    for record in listed():
        state = "runs" if record.owned else "its owner is gone: farflung emulate --clean removes what is left"
        typer.echo(f"{record.id:14} {record.topology:24} {len(record.nodes):3} nodes  {state}")
