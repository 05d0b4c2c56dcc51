"""Finding, hashing and caching files on the machine that reads them."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from farflung.data.base import Place
from farflung.data.objects import mirrored
from farflung.errors import DataError, InputError
from farflung.ids import content_hash
from farflung.job.patterns import Pattern, compile_pattern
from farflung.object_store import is_remote
from farflung.telemetry.shortage import remedy_of

__all__ = ["atomic_file", "content_digest", "default_cache", "find", "inside", "opened", "resolve"]

#: Folders that differ between machines although the data is the same, or that hold no data.
_SKIPPED = frozenset({"__pycache__", "site-packages", "dist-packages"})
#: Files of the standard library that are generated for one machine.
_GENERATED = ("_sysconfigdata", "_sysconfig_vars", "sitecustomize", "build-details")
_PIECE = re.compile(r"\[[^\]/]+\]|.", re.DOTALL)


def default_cache() -> Path:
    """The user's cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``), sub-folder ``farflung``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "farflung"


def resolve(path: str, place: Place) -> Path:
    """The place of a job's ``path`` on this machine; ``{stdlib}`` is the folder of the Python standard library.

    Raises:
        InputError: something else stands in braces.
        DataError: the path leads out of the data folder (by itself or by a link), and this machine keeps jobs inside.
    """
    if is_remote(path):
        return mirrored(path, place, _store, lambda _: True)
    expanded = path.replace("{stdlib}", sysconfig.get_path("stdlib"))
    if "{" in expanded:
        raise InputError(f"data path {path!r}: only {{stdlib}} may stand in braces")
    found = place.base / Path(expanded).expanduser()
    return inside([found], path, place)[0]


def inside(files: Sequence[Path], path: str, place: Place) -> Sequence[Path]:
    """``files`` behind the job's ``path``, if all are regular files and none, links followed, leaves the data folder.

    Python's own installation may be laid out with links, so what lies under ``{stdlib}`` is judged by the folder alone.

    Raises:
        DataError: one does, and this machine keeps jobs inside; or one is a pipe, a socket or a device, whose end may never come.
    """
    for file in files:
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise DataError(
                f"data {path!r}: {file} is a pipe, a socket or a device, not a file: remove it, or leave it out with data.glob"
            )
    if not place.confined:
        return files
    base, library = os.path.realpath(place.base), sysconfig.get_path("stdlib")
    own = path.startswith("{stdlib}")
    for file in files:
        plain = Path(os.path.normpath(file))
        if not (Path(os.path.realpath(file)).is_relative_to(base) or (own and plain.is_relative_to(os.path.normpath(library)))):
            raise DataError(
                f"data path {path!r} leads out of this machine's data folder, which jobs may not leave ({file} is not in "
                f"{base}): put the files there, or start this worker with --data FOLDER, "
                "or with --any-path to let jobs read everything"
            )
    return files


@contextmanager
def opened(file: Path) -> Iterator[BufferedReader]:
    """``file``, open to be read. A pipe that took the file's place since it was found is refused, and never waited for.

    Raises:
        DataError: it is no regular file.
        OSError: it can't be opened.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DataError(f"{file} is a pipe, a socket or a device, not a file: remove it, or leave it out with data.glob")
        yield stream


def find(path: str, glob: str, place: Place) -> tuple[Path, list[Path]]:
    """The folder behind ``path`` and its files that match ``glob``, sorted by relative path (a file stands for itself).

    Hidden files and ``__pycache__``, ``site-packages``, ``dist-packages`` are left out; so are, under ``{stdlib}``, the files
    that are generated for one machine.

    Raises:
        DataError: nothing is there.
    """
    pattern = _pattern(glob)
    root = mirrored(path, place, _store, lambda name: _counts(name, pattern)) if is_remote(path) else resolve(path, place)
    if root.is_file():
        return root.parent, [root]
    if not root.is_dir():
        raise DataError(
            f"data {path!r} is not on this machine (looked at {root}): copy it there, "
            "or start the worker with farflung join --data FOLDER"
        )
    files = [file for name, file in _walk(root, generated="{stdlib}" in path) if pattern.fullmatch(name)]
    if not files:
        raise DataError(f"data {path!r} has no file that matches {glob!r} on this machine (looked in {root}): check data.glob")
    if not is_remote(path):
        inside(files, path, place)
    return root, files


def _counts(name: str, pattern: Pattern) -> bool:
    """Whether an object of the relative ``name`` would be found in a folder."""
    parts = name.split("/")
    return pattern.fullmatch(name) is not None and not any(part in _SKIPPED or part.startswith(".") for part in parts)


def _store(file: Path, pieces: Iterable[bytes]) -> None:
    with atomic_file(file) as stream:
        for piece in pieces:
            stream.write(piece)


def _walk(root: Path, generated: bool) -> list[tuple[str, Path]]:
    """(relative path with slashes, path) of the files that count, sorted; links to folders are not followed."""
    found: list[tuple[str, Path]] = []
    for folder, inner, files in os.walk(root):
        here = Path(folder)
        top = here == root
        inner[:] = [
            name
            for name in inner
            if not (name in _SKIPPED or name.startswith(".") or (generated and top and name.startswith("config-")))
        ]
        kept = (name for name in files if not (name.startswith(".") or (generated and name.startswith(_GENERATED))))
        found.extend(((here / name).relative_to(root).as_posix(), here / name) for name in kept)
    return sorted(found)


def _pattern(glob: str) -> Pattern:
    """``*`` and ``?`` stay inside a name, ``**/`` stands for any folders, ``[...]`` for one of several characters.

    Raises:
        InputError: the pattern leads out of the data folder.
    """
    parts = glob.split("/")
    if not glob or glob.startswith("/") or ".." in parts:
        raise InputError(f"data.glob = {glob!r} is not a pattern below the data folder: write e.g. '**/*.txt'")
    texts = [
        ".*" if part == "**" and number == len(parts) - 1 else "(?:[^/]+/)*" if part == "**" else _name_pattern(part) + "/"
        for number, part in enumerate(parts)
    ]
    try:
        return compile_pattern("(?s)" + "".join(texts).removesuffix("/"))
    except InputError as error:
        raise InputError(f"data.glob = {glob!r:.80} is not a pattern: it {error}; write e.g. '**/*.txt'") from None


def _name_pattern(part: str) -> str:
    texts = []
    for piece in _PIECE.findall(part):
        if piece in ("*", "?"):
            texts.append("[^/]*" if piece == "*" else "[^/]")
        elif len(piece) > 1:
            inner = piece[1:-1].replace("\\", "\\\\")
            texts.append(f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]")
        else:
            texts.append(re.escape(piece))
    return "".join(texts)


def content_digest(root: Path, files: Sequence[Path], cache: Path) -> str:
    """SHA-256 over relative names, sizes and contents, in order; kept in ``cache`` under names, sizes and change times."""
    sizes = [file.stat() for file in files]
    names = [file.relative_to(root).as_posix() for file in files]
    signature = "\n".join(f"{file}\t{one.st_size}\t{one.st_mtime_ns}" for file, one in zip(files, sizes, strict=True))
    kept = cache / f"digest-{content_hash(signature.encode())}"
    if kept.is_file() and len(text := kept.read_text(encoding="ascii", errors="replace")) == 64:
        return text
    whole = hashlib.sha256()
    for name, file in zip(names, files, strict=True):
        with opened(file) as stream:
            inner = hashlib.file_digest(stream, "sha256").hexdigest()
        whole.update(f"{name}\t{inner}\n".encode())
    digest = whole.hexdigest()
    with suppress(DataError), atomic_file(kept) as stream:  # without it, the files are hashed again the next time
        stream.write(digest.encode())
    return digest


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under ``path`` whole or not at all.

    Raises:
        DataError: the folder can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}-{secrets.token_hex(8)}"
        stream = temporary.open("xb")
    except OSError as error:
        raise DataError(f"the cache folder {path.parent} can't be written: {error}; choose another one") from None
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        if remedy := remedy_of(error):  # else it is an error of what the caller reads
            raise DataError(f"the cache folder {path.parent} can't be written: {error.strerror}; {remedy}") from None
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
