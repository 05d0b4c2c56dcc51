"""The command line: every error is one clear line and an exit code of its own; Ctrl-C ends cleanly."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from farflung.cli.commands import LazyCommands
from farflung.errors import FarflungError
from farflung.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="farflung",
    cls=LazyCommands,
    help="Train PyTorch models on machines that are far apart, unequal and unreliable.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Train PyTorch models on machines that are far apart, unequal and unreliable."""


@app.command(hidden=True)
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.command(hidden=True)
def host() -> None:
    """Read a request of `farflung up` from the standard input, and answer it."""
    from farflung.cli.cluster.host import serve_request

    serve_request(main)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``farflung`` and of ``python -m farflung``."""
    try:
        app(arguments, standalone_mode=True, prog_name="farflung")
    except FarflungError as error:
        from farflung.foreign_text import printable  # here: --help needs no telemetry

        typer.echo(f"farflung: {printable(str(error))}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:  # what no command foresaw: no rights, no space, no file
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"farflung: {where}{error.strerror or error}; check path, rights and free space", err=True)
        sys.exit(1)
    except SystemExit as over:
        if over.__context__ is not None and isinstance(over.__context__.__cause__, KeyboardInterrupt):
            typer.echo("\nfarflung: interrupted", err=True)  # typer has made an exit of it
        raise
