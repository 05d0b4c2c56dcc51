"""``farflung doctor``: a diagnosis of this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from farflung.cli.options import JsonOption, address, echo_json
from farflung.telemetry.activity import Activity

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(doctor)


def doctor(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for a broker or worker to listen on (0: any).")] = 0,
    broker: Annotated[str | None, typer.Option("--broker", help="Address of the broker to join (HOST:PORT).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Diagnose this machine: versions, network, clock, memory and disk."""
    from farflung.worker.doctor import diagnose

    if broker is not None:
        address(broker, "--broker")
    with Activity() as activity:
        activity.phase("diagnosing this machine", silent=True)
        findings = diagnose(port=port, broker=broker)
    width = max(len(finding.what) for finding in findings)
    if as_json:
        echo_json([asdict(finding) for finding in findings])
    for finding in [] if as_json else findings:
        typer.echo(
            f"{finding.mark:5} {finding.what:{width}}  {finding.found}" + (f"; {finding.remedy}" if finding.remedy else "")
        )
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)
