"""What ``farflung emulate`` prints: text, or with ``--json`` one JSON object per line."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from farflung.units import Bytes, Seconds, counted

if TYPE_CHECKING:
    from farflung.cluster import Network
    from farflung.cluster.timeline import Change
    from farflung.emulation import Emulation
    from farflung.emulation.records import Record
    from farflung.emulation.session import PairCounters

__all__ = ["EmulationFacts"]


class EmulationFacts:
    """Prints facts about an emulation. Text about a running command goes to standard error: standard output is the command's.

    JSON goes to standard output, and ``command_output`` is then standard error.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    @property
    def command_output(self) -> TextIO | None:
        """Where the output of commands goes (``None``: to standard output)."""
        return sys.stderr if self._as_json else None

    def line(self, text: str) -> None:
        """Print a line of a command's output."""
        typer.echo(text, err=self._as_json)

    def cluster(self, emulation: Emulation, home: Path) -> None:
        """Print that a broker and workers start, with their folder."""
        workers = counted(len(emulation.nodes), "worker")
        self._print(f"emulation: broker and {workers}; runs and logs in {home}", "cluster", home=str(home))

    def remedy(self, home: Path) -> None:
        """Print how commands in a node find the broker. Its folder is in the JSON of ``cluster``."""
        if not self._as_json:
            typer.echo(f"enter a node (below) with FARFLUNG_HOME={shlex.quote(str(home.resolve()))} before the command: farflung")
            typer.echo("submit, status, watch and so on find the broker by it, without a ticket")

    def nodes(self, emulation: Emulation) -> None:
        """Print how to enter each node, and that Ctrl-C ends the emulation."""
        rows = [
            (node.name, node.address, f"nsenter --net=/proc/{os.getpid()}/fd/{emulation.namespace(node.index)}")
            for node in emulation.nodes.values()
        ]
        lines = [f"{name:24} {address:14} {enter} COMMAND" for name, address, enter in rows]
        body = [{"name": name, "address": address, "enter": enter} for name, address, enter in rows]
        self._print("\n".join([*lines, "Ctrl-C removes the network."]), "nodes", err=False, nodes=body)

    def change(self, network: Network, change: Change) -> None:
        """Print a change of the timeline."""
        what = network.told(change)
        self._print(f"emulation: after {change.at}: {what}", "change", after=float(change.at), change=what)

    def counters(self, pairs: Sequence[PairCounters], after: Seconds, *, end: bool = False) -> None:
        """Print the traffic so far. At the ``end``, the queues are empty."""
        text = _table(pairs, end=end)
        text = text if end else f"after {after}:\n{text}"
        self._print(text, "counters", after=float(after), end=end, pairs=[asdict(pair) for pair in pairs])

    def emulations(self, records: Sequence[Record]) -> None:
        """Print the emulations of this machine."""
        if self._as_json:
            rows = [{"id": one.id, "topology": one.topology, "nodes": list(one.nodes), "running": one.owned} for one in records]
            self._print("", "emulations", emulations=rows)
        for record in [] if self._as_json else records:
            state = "runs" if record.owned else "its owner is gone: farflung emulate --clean removes what is left"
            typer.echo(f"{record.id:14} {record.topology:24} {len(record.nodes):3} nodes  {state}")

    def removed(self, ids: Sequence[str]) -> None:
        """Print what was removed of killed emulations."""
        text = f"removed what {counted(len(ids), 'emulation')} had left" if ids else "nothing was left behind"
        self._print(text, "removed", err=False, removed=list(ids))

    def _print(self, text: str, kind: str, *, err: bool = True, **body: object) -> None:
        if self._as_json:
            typer.echo(json.dumps({"kind": kind, **body}))
        else:
            typer.echo(text, err=err)


def _table(pairs: Sequence[PairCounters], *, end: bool) -> str:
    queue = "" if end else f" {'queue':>8}"
    lines = [f"{'from':20} {'to':20} {'bytes':>10} {'packets':>9} {'lost':>7} {'dropped':>7} {'refused':>7}{queue}"]
    lines += [
        f"{pair.source:20} {pair.target:20} {Bytes(pair.bytes)!s:>10} {pair.packets:>9} {pair.lost:>7} {pair.dropped:>7} "
        f"{pair.refused:>7}" + ("" if end else f" {Seconds(pair.queued_seconds)!s:>8}")
        for pair in pairs
    ]
    return "\n".join(lines)
