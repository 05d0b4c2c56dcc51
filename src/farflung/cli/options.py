"""Options that several commands have, and the checks of their values. Each error names the option or the file, and the remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from farflung.errors import InputError, SecurityError
from farflung.security import split_address
from farflung.units import Quantity

__all__ = [
    "EMULATED",
    "HOME_HELP",
    "HomeOption",
    "JsonOption",
    "PlainOption",
    "RetryOption",
    "TicketOption",
    "VerboseOption",
    "about",
    "address",
    "answer",
    "echo_json",
    "host",
    "quantity",
    "read_text",
    "readable_folder",
    "to_write",
    "write_text",
]

#: The variable of the environment that names the topology of an emulated cluster.
EMULATED = "FARFLUNG_EMULATED"

Kind = TypeVar("Kind", bound=Quantity)

HOME_HELP = "Folder of the broker (default: ~/.farflung/broker)."
HomeOption = Annotated[Path | None, typer.Option("--home", help=HOME_HELP)]
TicketOption = Annotated[
    str | None, typer.Option("--ticket", help="Submit ticket, or @FILE (default: the broker on this machine).")
]
RetryOption = Annotated[str, typer.Option("--retry", help="How long to retry when the broker is unreachable.")]
MetricsOption = Annotated[
    str | None, typer.Option("--metrics", help="Serve metrics for Prometheus at HOST:PORT, e.g. 127.0.0.1:9464.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PlainOption = Annotated[bool, typer.Option("--plain", help="Print plain lines, also on a terminal.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Print details for experts.")]


def quantity(kind: type[Kind], text: str, option: str) -> Kind:
    """Return ``text`` as a quantity; ``option`` names its origin in errors.

    Raises:
        InputError: it is not a quantity of this kind, or its unit is missing.
    """
    try:
        return kind.typed(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def echo_json(body: object) -> None:
    """Print ``body`` as JSON."""
    typer.echo(json.dumps(body, indent=1))


def answer(text: str, body: object, *, as_json: bool) -> None:
    """Print ``text``, or ``body`` as JSON."""
    if as_json:
        echo_json(body)
    else:
        typer.echo(text)


@contextmanager
def about(file: Path) -> Iterator[None]:
    """Put the name of ``file`` before the text of an ``InputError`` of the block.

    Raises:
        InputError: the error of the block.
    """
    try:
        yield
    except InputError as error:
        if str(error).startswith(str(file)):
            raise
        raise type(error)(f"{file}: {error}") from error


def readable_folder(path: Path, option: str) -> Path:
    """Return ``path`` if it is a folder that this process can read.

    Raises:
        InputError: it is missing, is a file, or can't be read.
    """
    try:
        os.listdir(path)
    except NotADirectoryError:
        raise InputError(f"{option} {path} is a file: name the folder that it is in") from None
    except FileNotFoundError:
        raise InputError(f"{option} {path} does not exist on this machine: name an existing folder") from None
    except OSError as error:
        raise InputError(f"{option} {path} can't be read: {error.strerror}; check the rights of this user") from None
    return path


def address(text: str, option: str) -> str:
    """Return ``text``, the address HOST:PORT of another machine.

    Raises:
        InputError: it is none.
    """
    try:
        split_address(text)
    except SecurityError as error:
        raise InputError(f"{option}: {error}") from None
    return text


def host(text: str | None, option: str) -> str | None:
    """Return ``text``, the host to which others connect (``None``: not given).

    Raises:
        InputError: it is neither a name nor an IP address.
    """
    try:
        if text is not None:
            split_address(f"{text}:1")
    except SecurityError:
        raise InputError(f"{option} {text!r} is not a host: write a name or an IP address, without a port") from None
    return text


def read_text(path: Path, what: str) -> str:
    """Return the text of a file. ``what`` describes the file in the error.

    Raises:
        InputError: it is not there, or no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"the {what} {path} can't be read: {reason}; check the path") from None


def to_write(path: Path) -> Path:
    """Return ``path`` if a file can be written there. Commands check this before the work whose result the file gets.

    Raises:
        InputError: its folder is missing or may not be written, or it is a folder itself.
    """
    before = path.exists()
    if before and not path.is_file() and not path.is_dir():
        return path  # a pipe or device: only who writes opens it
    try:
        with path.open("a"):
            pass
        if not before:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to a file that a person named.

    Raises:
        InputError: it can't be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} can't be written: {error.strerror}; choose another file")
