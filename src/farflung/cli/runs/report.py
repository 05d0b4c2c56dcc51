"""``farflung report``: a page about one run, or a comparison of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from farflung.cli.completion import complete_run
from farflung.cli.home import run_folder
from farflung.cli.options import HomeOption, JsonOption, answer, to_write
from farflung.errors import FarflungError
from farflung.telemetry import RunFolder
from farflung.telemetry.activity import Activity
from farflung.units import counted

__all__ = ["register", "report_here"]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(report)


def report(
    runs: Annotated[
        list[str],
        typer.Argument(help="Names of runs or run folders. Several are compared.", autocompletion=complete_run),
    ],
    target: Annotated[
        Path | None, typer.Option("--out", help="Output file, .html or .md (default: report.html in the run folder).")
    ] = None,
    to: Annotated[
        list[str] | None, typer.Option(help="Send the runs to this experiment tracker instead: tensorboard, wandb, mlflow, ...")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="With --to: continue until the run ends.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="With --to wandb: write to disk only.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report of one run. With several runs: compare them with the first. With --to: send runs to a tracker."""
    from farflung.web.reports import compare_report, write_report

    folders = [run_folder(run, home) for run in runs]
    if to:
        from farflung.cli.runs.tracking import send_runs

        send_runs(folders, to, follow=follow, offline=offline)
        return
    if target is not None:
        to_write(target)
    with Activity() as activity:
        activity.phase("writing the report", silent=True)
        if len(folders) == 1:
            written = write_report(folders[0], target)
        else:
            written = compare_report(folders, _labels(folders), target or folders[0] / "comparison.html")
    answer(_written(written), {"report": str(written)}, as_json=as_json)


def _written(path: Path) -> str:
    """Return the path of a report; for Markdown also the number of pictures beside it."""
    from farflung.web.reports.markdown import picture_names

    names = picture_names(path.read_text(encoding="utf-8"), quote(path.stem)) if path.suffix == ".md" else []
    return f"{path}, with {counted(len(names), 'picture')} beside it: {path.stem}-*.svg" if names else str(path)


def _labels(folders: Sequence[Path]) -> list[str]:
    """Return the names of the jobs, or of the folders if two jobs have the same name."""
    from farflung.web.reports import load_run

    names = [load_run(folder).job.name for folder in folders]
    return names if len(set(names)) == len(names) else [folder.name for folder in folders]


def report_here(folder: Path) -> str:
    """Write the report of a run whose folder may be on this machine; a line that says where it is, or how to get it (empty: there
    is nothing to report)."""
    from farflung.web.reports import write_report

    if not RunFolder(folder).job.is_file():
        return f"report: run on the broker's machine: farflung report {folder}"
    if not RunFolder(folder).metrics.is_file():
        return ""  # it ended before its first step: its cause says all
    try:
        return f"report: {write_report(folder)}"
    except FarflungError as error:
        return f"no report: {error}"
