"""Writes reports: one run on its own, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from farflung.errors import DataError, InputError
from farflung.telemetry import ProcessTrace, RunFolder, read_traces
from farflung.units import counted
from farflung.web.reports import tables
from farflung.web.reports.drawing import run_drawings
from farflung.web.reports.markdown import to_markdown
from farflung.web.reports.page import Page, to_html
from farflung.web.reports.plots import compare_plots, run_plots
from farflung.web.reports.run import Run, load_run

__all__ = ["compare_report", "write_report"]

_FORMS = (".html", ".md")


def write_report(run_dir: str | Path, target: str | Path | None = None) -> Path:
    """Write the report of the run in ``run_dir`` and return its path.

    ``target`` ends in ``.html`` (one self-contained page) or ``.md`` (plots as SVG files beside it); default
    ``<run_dir>/report.html``.

    Raises:
        DataError: a file of the run is missing or damaged, or the report can't be written.
        InputError: ``target`` has another ending.
    """
    path = _target(target if target is not None else Path(run_dir) / "report.html")
    run, events = load_run(run_dir), RunFolder(Path(run_dir)).events
    return _write(_run_page(run, tuple(read_traces(events))), path)


def compare_report(run_dirs: Sequence[str | Path], labels: Sequence[str], target: str | Path) -> Path:
    """Write one report of several runs, ``run_dirs[0]`` being what the others are measured against; return its path.

    Shows loss against time, against bytes and against steps, and a table with the time and the bytes that each run took to
    the lowest loss that all of them reached. ``target`` as for ``write_report``.

    Raises:
        DataError: a file of a run is missing or damaged, or the report can't be written.
        InputError: there is no run, or not one label for each, or labels repeat, or ``target`` has a wrong ending.
    """
    if not run_dirs or len(run_dirs) != len(labels):
        raise InputError(f"a comparison needs one label for each run, got {len(run_dirs)} runs and {len(labels)} labels")
    if len(set(labels)) != len(labels):
        raise InputError(f"the labels of a comparison must differ, got {', '.join(labels)}")
    path = _target(target)
    runs = [load_run(folder, label) for folder, label in zip(run_dirs, labels, strict=True)]
    return _write(_compare_page(runs), path)


def _run_page(run: Run, traces: tuple[ProcessTrace, ...]) -> Page:
    badge, sentence = tables.status(run)
    devices = len(run.plan.devices)
    lead = f"{counted(len(run.plan.stages), 'stage')} on {counted(devices, 'device')}. {sentence}"
    if not run.steps:
        lead += " No step was finished, so there is nothing to plot."
    sample = run.result.sample if run.result else ""
    return Page(
        title=run.label,
        lead=lead,
        badge=badge,
        figures=tables.headline(run),
        plots=(*run_plots(run), *run_drawings(run, traces)),
        tables=(*_run_tables(run), tables.totals(run), tables.settings(run.job)),
        texts=(("Generated text", sample),) if sample else (),
    )


def _run_tables(run: Run) -> list[tables.Table]:
    lost = tables.recoveries(run)
    relays = tables.relays(run)
    rare = [table for table in (relays, lost) if table]
    return [tables.stages(run), tables.links(run), *rare, tables.evaluations(run)]


def _compare_page(runs: Sequence[Run]) -> Page:
    unfinished = [f"{run.label} ({tables.status(run)[0]})" for run in runs if tables.status(run)[0] != "finished"]
    lead = f"{counted(len(runs), 'run')}, measured against {runs[0].label}."
    if unfinished:
        lead += f" Not finished: {', '.join(unfinished)}."
    seeds = {run.job.seed for run in runs}
    lead += f" All with seed {seeds.pop()}." if len(seeds) == 1 else " Their seeds differ."
    samples = tuple((f"Text by {run.label}", run.result.sample) for run in runs if run.result and run.result.sample)
    table = tables.comparison(runs)
    return Page(title="Comparison of runs", lead=lead, plots=tuple(compare_plots(runs)), tables=(table,), texts=samples)


def _target(target: str | Path) -> Path:
    path = Path(target)
    if path.suffix not in _FORMS:
        raise InputError(f"a report ends in {' or '.join(_FORMS)}, got {path.name!r}")
    return path


def _write(page: Page, path: Path) -> Path:
    try:
        if path.suffix == ".html":
            path.write_text(to_html(page), encoding="utf-8")
            return path
        for plot in page.plots:
            path.with_name(f"{path.stem}-{plot.name}.svg").write_text(plot.svg, encoding="utf-8")
        path.write_text(to_markdown(page, quote(path.stem)), encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; choose a folder that can be written") from None
    return path
