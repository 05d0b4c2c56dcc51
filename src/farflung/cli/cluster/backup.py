"""``farflung backup`` and ``farflung restore``: a broker's folder in one file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.home import broker_folder, known_broker
from farflung.cli.options import HomeOption, JsonOption, answer
from farflung.units import counted

if TYPE_CHECKING:
    from farflung.broker.records.backup import BackupSummary

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(backup)
    app.command()(restore)


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    folder: HomeOption = None,
    no_checkpoints: Annotated[bool, typer.Option("--no-checkpoints", help="Leave out checkpoints.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a broker's keys, tickets, runs and checkpoints to a file. The broker may run meanwhile."""
    from farflung.broker.records.backup import back_up

    made = back_up(known_broker(folder), file, checkpoints=not no_checkpoints)
    _tell(f"{file}: {_described(made)}; whoever reads this file controls the cluster", file, made, as_json=as_json)


def restore(
    file: Annotated[Path, typer.Argument(help="A file of `farflung backup`.")],
    folder: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a broker's folder from a backup."""
    from farflung.broker.records import backup as backups

    place = broker_folder(folder)
    made = backups.restore(file, place)
    here = "" if folder is None else f" --home {folder}"
    _tell(f"{place}: {_described(made)}; start it with: farflung broker{here}", place, made, as_json=as_json)


def _described(made: BackupSummary) -> str:
    return f"{counted(made.files, 'file')} of {counted(made.runs, 'run')}, {made.size}"


def _tell(text: str, place: Path, made: BackupSummary, *, as_json: bool) -> None:
    answer(text, {"path": str(place), **asdict(made), "size": float(made.size)}, as_json=as_json)
