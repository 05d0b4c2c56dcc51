"""``farflung chaos``: a job under injected faults, with processes of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.options import quantity
from farflung.job import load_job
from farflung.units import Seconds

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(chaos)


def chaos(
    job: Annotated[Path, typer.Argument(help="The job file (TOML).")],
    workers: Annotated[int, typer.Option(help="Number of worker processes on this machine.")] = 3,
    faults: Annotated[int, typer.Option(min=0, help="Number of faults.")] = 6,
    kinds: Annotated[
        str,
        typer.Option(
            help="Kinds of faults, separated by commas: kill, stop, partition, one_way, corrupt, full_disk, clock_jump; or all."
        ),
    ] = "kill",
    seed: Annotated[int, typer.Option(help="Random seed of times, kinds and victims.")] = 0,
    moment: Annotated[
        str, typer.Option("--at", help="Inject faults at this named moment (see docs/chaos.md; default: any time).")
    ] = "",
    broker: Annotated[bool, typer.Option("--broker/--no-broker", help="Inject faults into the broker, too.")] = True,
    hold: Annotated[str, typer.Option(help="Duration of stops, network cuts and full disks.")] = "8 s",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a job twice on this machine, without and with injected faults.

    Print recovery times, throughput, lost samples and weight differences.
    """
    from farflung.api.submission import bundle_job, check_data
    from farflung.chaos.faults import KINDS
    from farflung.chaos.trial import TrialSettings, plan_faults, run_trial

    spec = load_job(job)
    chosen = tuple(KINDS) if kinds == "all" else tuple(kind.strip() for kind in kinds.split(",") if kind.strip())
    settings = TrialSettings(
        workers=workers,
        faults=faults,
        kinds=chosen,
        seed=seed,
        moment=moment,
        broker=broker,
        hold=float(quantity(Seconds, hold, "--hold")),
    )
    plan_faults(settings, spec.steps)  # what is wrong is told before the capture

    def say(line: str) -> None:
        typer.echo(line, err=as_json)

    bundle = bundle_job(spec, base=job.parent, say=say)
    check_data(bundle, job.parent)
    trial = run_trial(bundle, job.parent, settings, say)
    typer.echo(json.dumps(trial.document(), indent=1) if as_json else trial.text())
    if trial.differing or trial.report.lost or trial.report.repeated:
        raise typer.Exit(1)
