"""Checkpoints in a folder: ``<folder>/step-0000000100/`` with shards and, last of all, ``manifest.json``.

Shards are named by their content, so that writing a step again never touches the shards of a manifest that stands. Every file
is written beside its place, forced to disk and renamed; a process killed at any instant leaves old checkpoints whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from farflung.checkpoint.blob import FileBlob
from farflung.checkpoint.manifest import OPTIMIZER, Manifest, ShardRecord, TensorRecord, check_size
from farflung.checkpoint.safetensors import Array, SafetensorsIndex, encode, spec_of
from farflung.errors import CheckpointError, DiskFull, FarflungError
from farflung.telemetry.faults import fault_point
from farflung.telemetry.shortage import remedy_of

__all__ = ["CheckpointStore", "encode_shard", "kept_steps", "locate", "pack", "write_file"]

_MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d{10})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_BLOCK = 1 << 24


def pack(states: Mapping[str, Array], optimizer: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """The tensors of a shard: states by name, optimizer slots (``<slot>/<parameter>``) behind ``optimizer/``."""
    return {**states, **{OPTIMIZER + name: array for name, array in (optimizer or {}).items()}}


def encode_shard(tensors: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """A shard's bytes in pieces, for ``store_shard`` on another machine."""
    return encode({name: spec_of(array) for name, array in tensors.items()}, tensors.__getitem__)


def checkpoint_step(path: str | Path) -> int | None:
    """The step of the checkpoint whose folder is ``path``, which may be another machine's (``None``: it is not one's)."""
    match = _STEP.fullmatch(Path(path).name)
    return None if match is None else int(match[1])


def locate(path: str | Path) -> tuple[CheckpointStore, int | None]:
    """The checkpoints behind ``path``: a run's folder, the folder of its checkpoints, or a single one (then its step, too)."""
    folder = Path(path)
    step = checkpoint_step(folder)
    if step is not None and folder.is_dir():
        return CheckpointStore(folder.parent), step
    inner = folder / "checkpoints"
    return CheckpointStore(inner if inner.is_dir() else folder), None


class CheckpointStore:
    """The checkpoints of one run in ``folder`` (made when the first shard is written)."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, step: int) -> Path:
        """The folder of the checkpoint after ``step`` committed steps."""
        return self.folder / f"step-{step:010d}"

    def write_shard(self, step: int, name: str, tensors: Mapping[str, Array]) -> ShardRecord:
        """Write one shard (``name``: letters, digits, ``_`` and ``-``); it counts once a manifest lists it.

        Raises:
            CheckpointError: the folder can't be written, or an element type isn't allowed.
        """
        return self.store_shard(step, name, encode_shard(tensors))

    def store_shard(self, step: int, name: str, pieces: Iterable[bytes | bytearray | memoryview]) -> ShardRecord:
        """Write a shard that arrives in pieces (``encode_shard`` elsewhere); it must be a whole safetensors file.

        Raises:
            CheckpointError: the pieces are no whole file, or the folder can't be written.
            DiskFull: there is no space.
        """
        if not _NAME.fullmatch(name):
            raise CheckpointError(f"shard name {name!r} is not allowed: use letters, digits, _ and -")
        folder = self.path(step)
        digest = hashlib.sha256()
        with _replacing(folder / f"{name}.safetensors") as pending:
            for piece in pieces:
                digest.update(piece)
                pending.stream.write(piece)
            pending.stream.flush()
            records = _records(SafetensorsIndex(FileBlob(pending.temporary)))
            size = pending.stream.tell()
            pending.place = folder / f"{name}-{digest.hexdigest()[:16]}.safetensors"
        return ShardRecord(file=pending.place.name, size=size, sha256=digest.hexdigest(), tensors=records)

    def write_manifest(self, manifest: Manifest, expected: Collection[str] = ()) -> None:
        """Make the checkpoint exist: all shards are here whole (sizes are checked) and hold all ``expected`` tensors.

        Raises:
            CheckpointError: a shard is missing or torn, or an expected tensor is in none.
        """
        self._check_sizes(manifest)
        missing = [name for name in expected if name not in manifest.home]
        if missing:
            raise CheckpointError(
                f"checkpoint of step {manifest.step} lacks {len(missing)} of {len(expected)} tensors, e.g. {missing[0]!r}: "
                "every stage must write its shard before the manifest"
            )
        with _replacing(self.path(manifest.step) / _MANIFEST) as pending:
            pending.stream.write(manifest.to_json().encode())

    def steps(self) -> tuple[int, ...]:
        """Steps that have a manifest, ascending."""
        return tuple(step for step, folder in self._folders() if (folder / _MANIFEST).is_file())

    def manifest(self, step: int) -> Manifest:
        """The manifest of ``step``.

        Raises:
            CheckpointError: there is none (the text lists those that exist), or it is corrupt.
        """
        file = self.path(step) / _MANIFEST
        try:
            check_size(file.stat().st_size, str(file))
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            known = ", ".join(map(str, self.steps())) or "none"
            raise CheckpointError(f"{self.folder} has no whole checkpoint of step {step}: there are {known}") from None
        except OSError as error:
            raise _unreadable(file, error) from None
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{file} can't be read: {error}") from None
        found = Manifest.from_json(text, str(file))
        if found.step != step:
            raise CheckpointError(
                f"{file} is the manifest of step {found.step}: its folder was renamed, name it {self.path(found.step).name}"
            )
        return found

    def latest(self) -> Manifest | None:
        """The newest checkpoint that ``verify`` accepts (all its bytes are read), or None.

        Raises:
            DiskFull: no descriptor is free; the newest checkpoint may be whole.
        """
        for step in reversed(self.steps()):
            try:
                return self.verify(step)
            except DiskFull:
                raise
            except FarflungError:
                continue
        return None

    def verify(self, step: int) -> Manifest:
        """Read every byte of the checkpoint and compare it with the manifest's hashes.

        Raises:
            CheckpointError: what is missing, torn or corrupt.
            DiskFull: no descriptor is free.
        """
        manifest = self.manifest(step)
        self._check_sizes(manifest)
        for shard in manifest.shards:
            file = self.path(step) / shard.file
            if _sha256(file) != shard.sha256:
                raise CheckpointError(f"{file} is corrupt (its hash differs from the manifest's): use an older checkpoint")
            found = {name: entry.spec for name, entry in SafetensorsIndex(FileBlob(file)).tensors.items()}
            if found != {record.name: record.spec for record in shard.tensors}:
                raise CheckpointError(f"{file} holds other tensors than the manifest says: use an older checkpoint")
        return manifest

    def prune(self, keep: int, every: int = 0, for_ever: int = 0) -> tuple[int, ...]:
        """Delete all but the newest ``keep`` (at least 1) whole checkpoints, and torn ones that are older; returns the steps.

        ``every``: older checkpoints between multiples of it were written to recover from only, and go (0: there are none).
        ``for_ever``: those at multiples of it stay (0: none does). Whole means here: the manifest is sound and every shard has
        its size. What is newer than the newest whole one stays.
        """
        folders = dict(self._folders())
        whole = [step for step in sorted(folders) if self._looks_whole(step)]
        if not whole:
            return ()
        kept = kept_steps(whole, keep, every, for_ever)
        gone = [step for step in sorted(folders) if step < whole[-1] and step not in kept]
        for step in gone:
            _remove(folders[step])
        return tuple(gone)

    def remove_after(self, step: int) -> None:
        """Remove all checkpoints of later steps than ``step``, whole or not."""
        for found, folder in self._folders():
            if found > step:
                _remove(folder)

    def _looks_whole(self, step: int) -> bool:
        try:
            self._check_sizes(self.manifest(step))
        except FarflungError:
            return False
        return True

    def _check_sizes(self, manifest: Manifest) -> None:
        for shard in manifest.shards:
            file = self.path(manifest.step) / shard.file
            if not file.is_file():
                raise CheckpointError(f"shard {file} is missing: use an older checkpoint")
            if (size := file.stat().st_size) != shard.size:
                raise CheckpointError(f"shard {file} is torn: it has {size} of {shard.size} bytes; use an older checkpoint")

    def _folders(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        found = ((_STEP.fullmatch(folder.name), folder) for folder in self.folder.iterdir() if folder.is_dir())
        return sorted((int(match[1]), folder) for match, folder in found if match is not None)


def kept_steps(whole: Sequence[int], keep: int, every: int = 0, for_ever: int = 0) -> set[int]:
    """Which of the steps ``whole`` (ascending) stay; see ``CheckpointStore.prune``.

    Raises:
        ValueError: none would.
    """
    if keep < 1:
        raise ValueError(f"at least one checkpoint must be kept, got keep={keep}")
    newest = [step for step in whole if not every or step % every == 0 or step == whole[-1]][-keep:]
    return {*newest, *(step for step in whole if for_ever and step % for_ever == 0)}


def write_file(path: Path, pieces: Iterable[bytes | bytearray | memoryview], *, durable: bool = True) -> None:
    """Write ``path`` whole or not at all; ``durable``: a machine that loses power afterwards has it, too.

    Raises:
        CheckpointError: it can't be written.
    """
    with _replacing(path, durable=durable) as pending:
        for piece in pieces:
            pending.stream.write(piece)


@dataclass(slots=True)
class _Pending:
    """A file under a temporary name that will take the name ``place``."""

    stream: BinaryIO
    temporary: Path
    place: Path


@contextlib.contextmanager
def _replacing(path: Path, *, durable: bool = True) -> Iterator[_Pending]:
    """A new file that takes the place of ``path`` when the block ends well, and leaves nothing when it doesn't."""
    temporary = path.parent / f".{path.name}-{secrets.token_hex(8)}.part"
    try:
        fault_point("disk.before_write", file=path.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as stream:
            pending = _Pending(stream, temporary, path)
            yield pending
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        temporary.replace(pending.place)
        if durable:
            _sync(path.parent)
    except OSError as error:
        remedy = remedy_of(error)
        kind = DiskFull if remedy else CheckpointError
        raise kind(f"{path} can't be written: {error.strerror}; {remedy or 'choose another folder'}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(folder: Path) -> None:
    """The manifest goes first, so that what is left after a kill is no checkpoint."""
    try:
        (folder / _MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder)
    except OSError as error:
        raise CheckpointError(f"the old checkpoint {folder} can't be deleted: {error.strerror}; delete it by hand") from None


def _records(index: SafetensorsIndex) -> tuple[TensorRecord, ...]:
    found = []
    for entry in index.tensors.values():
        crc32 = 0
        for start in range(entry.start, entry.stop, _BLOCK):
            crc32 = zlib.crc32(index.blob.read(start, min(_BLOCK, entry.stop - start)), crc32)
        found.append(TensorRecord(name=entry.name, spec=entry.spec, crc32=crc32))
    return tuple(found)


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: OSError) -> FarflungError:
    """Return the error for ``file``; a lack of descriptors passes, and is no damage."""
    remedy = remedy_of(error)
    return (
        DiskFull(f"{file} can't be read: {error.strerror}; {remedy}")
        if remedy
        else CheckpointError(f"{file} can't be read: {error}")
    )
