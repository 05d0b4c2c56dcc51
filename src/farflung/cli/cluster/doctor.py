"""``farflung doctor``: a diagnosis of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(doctor)


def doctor(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for a broker or worker to listen on (0: any).")] = 0,
    broker: Annotated[str | None, typer.Option("--broker", help="Address of the broker to join (HOST:PORT).")] = None,
) -> None:
    """Diagnose this machine: versions, network, clock, memory and disk."""
    from farflung.worker.doctor import diagnose

    findings = diagnose(port=port, broker=broker)
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        typer.echo(
            f"{finding.mark:5} {finding.what:{width}}  {finding.found}" + (f"; {finding.remedy}" if finding.remedy else "")
        )
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)
