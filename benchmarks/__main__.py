"""``python -m benchmarks NAME``: measures a figure of the documentation on this machine."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.base import override
from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.harness.environment import environment
from farflung.cli.options import to_write, write_text
from farflung.errors import FarflungError, InputError

__all__ = ["app", "bench", "main"]


def bench(
    name: Annotated[str, typer.Argument(help="The benchmark's name, or `list`.")],
    file: Annotated[str, typer.Argument(help="With --json: the file to write (-: standard output).")] = "-",
    as_json: Annotated[bool, typer.Option("--json", help="Write the report as one JSON object.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small and fast; targets are not judged.")] = False,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a setting: key=value (may be repeated).")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a target is missed.")] = False,
) -> None:
    """Run a benchmark: prints a table, and with --json [FILE] the whole report."""
    if name == "list":
        for known in BENCHMARKS:
            typer.echo(f"{known:12} {BENCHMARKS.get(known).summary}")
        return
    if file != "-" and not as_json:
        raise InputError(f"{file!r} is not used without --json: write --json {file}")
    chosen = BENCHMARKS.get(name)
    settings = override(chosen.settings(quick), change or [])
    if file != "-":
        to_write(Path(file))
    machine = environment()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end and its folders go, as by Ctrl-C
    try:
        report = chosen.run(settings, lambda text: typer.echo(text, err=True))
    finally:
        signal.signal(signal.SIGTERM, before)
    to_stdout = as_json and file == "-"
    typer.echo(report.table(), err=to_stdout)
    if as_json:
        text = json.dumps(report.document(name, settings, machine), indent=1)
        if to_stdout:
            typer.echo(text)
        else:
            write_text(Path(file), text + "\n")
    if check and report.passed is False:
        raise typer.Exit(1)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(bench)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; an error of farflung is one line."""
    try:
        app(arguments)
    except FarflungError as error:
        typer.echo(f"benchmarks: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
