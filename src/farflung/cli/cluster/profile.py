"""``farflung profile``: measure the links between workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from farflung.cli.broker_connection import open_client
from farflung.cli.options import HomeOption, TicketOption, to_write, write_text
from farflung.cluster import Topology
from farflung.messages.calls import LinkFound, MeasuredTopology, ProbeRound, Unreachable
from farflung.telemetry.terminal import print_table
from farflung.units import BytesPerSecond, Seconds

__all__ = ["register"]

#: From slow to fast, by decades of Mbit/s.
_HEAT = ("white on dark_red", "white on red3", "black on orange3", "black on yellow3", "black on green3", "white on dark_green")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(profile)


def profile(
    ticket: TicketOption = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the topology to a TOML file for `farflung plan`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the topology as JSON.")] = False,
    home: HomeOption = None,
) -> None:
    """Measure the links between all joined workers. The broker plans with the results."""
    if save is not None:
        to_write(save)
    client = open_client(ticket, home)
    try:
        document = ""
        caps: dict[str, float] = {}
        for message in client.profile():
            line = ""
            match message:
                case ProbeRound(number=number, of=of, pairs=pairs):
                    line = f"measuring, {number} of {of}: {', '.join(' and '.join(pair) for pair in pairs)}"
                case Unreachable(source=source, to=to, cause=cause):
                    line = f"{source} cannot reach {to}: {cause}"
                case LinkFound(source=source, to=to, relay=relay) if relay:
                    line = f"{source} reaches {to} through {relay}"
                case MeasuredTopology():
                    document, caps = message.topology, message.uplinks
            if line:
                typer.echo(line, err=as_json)
    finally:
        client.close()
    topology = Topology.from_json(document)
    if as_json:
        typer.echo(topology.to_json())
    else:
        _show(topology, caps)
    if save is not None:
        write_text(save, topology.to_toml(digits=4))
        typer.echo(f"saved: farflung plan JOB --topology {save}", err=as_json)


def _show(topology: Topology, caps: dict[str, float]) -> None:
    table = Table("from \\ to", *topology.names, title="one-way latency and payload bandwidth")
    for i, source in enumerate(topology.names):
        cells = []
        for j, target in enumerate(topology.names):
            cells.append(Text("-") if i == j else _cell(topology, source, target))
        table.add_row(source, *cells)
    print_table(table)
    for (a, b), relays in topology.via.items():
        through = f"traffic goes through {relays[0]}" if relays else "add a worker that both can reach, as a relay"
        typer.echo(f"{a} and {b} cannot connect directly: {through}")
    for name, rate in caps.items():
        typer.echo(f"{name} sends at most {BytesPerSecond(rate).written()} in total: its links share an uplink")


def _cell(topology: Topology, source: str, target: str) -> Text:
    link = topology.link(source, target)
    megabits = float(link.bandwidth) * 8 / 1e6
    decade = sum(megabits >= limit for limit in (1, 10, 100, 1000, 10_000))
    return Text(f"{Seconds(link.latency)} {megabits:.4g} Mbit/s", style=_HEAT[decade])
