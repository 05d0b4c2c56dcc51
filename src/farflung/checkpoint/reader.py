"""Reads tensors of a checkpoint, whoever wrote which shard: any partition resumes from any other."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from farflung.checkpoint.blob import Blob, FileBlob
from farflung.checkpoint.manifest import OPTIMIZER, Manifest, ShardRecord
from farflung.checkpoint.safetensors import Array, SafetensorsIndex
from farflung.checkpoint.store import CheckpointStore
from farflung.errors import CheckpointError
from farflung.graph.ir import TensorSpec
from farflung.known_names import did_you_mean

__all__ = ["CheckpointReader", "FetchedReader"]


class CheckpointReader:
    """Tensors of the checkpoint ``manifest``; ``open_shard`` gives a shard's bytes (a file here, ranges over the network).

    Only the bytes of the tensors asked for are read; each is checked against its CRC-32 in the manifest.
    """

    def __init__(self, manifest: Manifest, open_shard: Callable[[ShardRecord], Blob]) -> None:
        self.manifest = manifest
        self._open = open_shard
        self._indexes: dict[str, SafetensorsIndex] = {}

    @classmethod
    def from_folder(cls, folder: str | Path, step: int | None = None) -> CheckpointReader:
        """The checkpoint of ``step`` below the run's ``folder`` (None: the newest whole one).

        Raises:
            CheckpointError: there is none.
        """
        store = CheckpointStore(folder)
        manifest = store.latest() if step is None else store.manifest(step)
        if manifest is None:
            raise CheckpointError(f"{folder} holds no whole checkpoint: name a run, or a folder, that has one")
        place = store.path(manifest.step)
        return cls(manifest, lambda shard: FileBlob(place / shard.file))

    @property
    def states(self) -> tuple[str, ...]:
        """The names of parameters and buffers."""
        return tuple(self.manifest.states)

    def spec(self, name: str) -> TensorSpec:
        """Element type and shape of a state."""
        return self.manifest.home[name][1].spec

    def read(self, names: Iterable[str]) -> dict[str, Array]:
        """States by name; optimizer slots as ``optimizer/<slot>/<parameter>``.

        Raises:
            CheckpointError: a name is not in the checkpoint, or its bytes are missing, torn or corrupt.
        """
        return {name: self._tensor(name) for name in names}

    def read_optimizer(self, parameters: Collection[str]) -> dict[str, Array]:
        """All optimizer slots of ``parameters`` as ``<slot>/<parameter>`` (a frozen one has none)."""
        return {name: self._tensor(OPTIMIZER + name) for name in self.optimizer_names(parameters)}

    def optimizer_names(self, parameters: Collection[str]) -> tuple[str, ...]:
        """The optimizer slots of ``parameters``, ``<slot>/<parameter>``."""
        wanted = set(parameters)
        return tuple(name for name in self.manifest.optimizer if name.partition("/")[2] in wanted)

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """Rows ``start`` to ``stop`` of one tensor; only their bytes are read (they carry no checksum of their own)."""
        return self._index(name).read_rows(name, start, stop)

    def _tensor(self, name: str) -> Array:
        array = self._index(name).read(name)
        shard, record = self.manifest.home[name]
        if zlib.crc32(array.reshape(-1).view("u1").data) != record.crc32:
            raise CheckpointError(
                f"tensor {name!r} in shard {shard.file} is corrupt (its checksum differs): use an older checkpoint"
            )
        return array

    def _index(self, name: str) -> SafetensorsIndex:
        home = self.manifest.home.get(name)
        if home is None:
            hint = did_you_mean(name, self.manifest.home)
            raise CheckpointError(
                f"the checkpoint of step {self.manifest.step} has no tensor {name!r}: {hint}it has {len(self.manifest.home)}"
            )
        shard, record = home
        if shard.file not in self._indexes:
            blob = self._open(shard)
            if blob.size != shard.size:
                raise CheckpointError(
                    f"shard {shard.file} is torn: it has {blob.size} of {shard.size} bytes; use an older checkpoint"
                )
            self._indexes[shard.file] = SafetensorsIndex(blob)
        index = self._indexes[shard.file]
        if index.entry(name).spec != record.spec:
            raise CheckpointError(f"shard {shard.file} holds another {name!r} than the manifest says: use an older checkpoint")
        return index


class FetchedReader(CheckpointReader):
    """States of a checkpoint that lies elsewhere; ``fetch`` returns states by name."""

    def __init__(self, manifest: Manifest, fetch: Callable[[tuple[str, ...]], Mapping[str, Array]]) -> None:
        super().__init__(manifest, _nowhere)
        self._fetch = fetch

    def read(self, names: Iterable[str]) -> dict[str, Array]:
        """States by name.

        Raises:
            CheckpointError: a name is not in the checkpoint.
        """
        wanted = tuple(names)
        found = dict(self._fetch(wanted))
        if lacking := [name for name in wanted if name not in found]:
            raise CheckpointError(f"the checkpoint has no {lacking[0]!r}: the run was changed meanwhile; export it again")
        return found


def _nowhere(shard: ShardRecord) -> Blob:
    raise CheckpointError(f"shard {shard.file} lies elsewhere: only states can be read")
