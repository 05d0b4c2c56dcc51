"""Checkpoints in an object store (S3 and what speaks like it, or whatever ``obstore`` opens by a URL).

``<url>/<run>/step-0000000100/`` has the same files as on disk. Shards are written first, each under a name that holds the hash of
its content, and the manifest last, in one request that either happens or does not; removing goes the other way round. So what has
a manifest is whole at any instant, whoever is killed when. What is read is compared with the manifest's hashes.
Keys and endpoint come from where the store's own tools take them (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ...).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from farflung.checkpoint.manifest import Manifest, check_size
from farflung.checkpoint.store import CheckpointStore, kept_steps
from farflung.errors import CheckpointError, FarflungError
from farflung.object_store import open_store, short

__all__ = ["ObjectCheckpoints"]

_MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d{10})")
_CHUNK = 8 << 20


class ObjectCheckpoints:
    """The checkpoints of one run below ``url``. Safe for several threads."""

    def __init__(self, url: str, run: str = "") -> None:
        """``run``: a folder below ``url`` (empty: ``url`` is the run's).

        Raises:
            InputError: the URL can't be opened, or ``obstore`` is not installed.
        """
        self.url = "/".join(part for part in (url.rstrip("/"), run) if part)
        self._store = open_store(self.url)

    def steps(self) -> tuple[int, ...]:
        """Steps that have a manifest, ascending.

        Raises:
            CheckpointError: the store does not answer, or refuses.
        """
        return _whole(self._files())

    def push(self, store: CheckpointStore, step: int) -> int:
        """Copy the checkpoint of ``step``; what is there already is not sent again. Returns the bytes that were sent.

        Raises:
            CheckpointError: it is not whole here, or the store does not take it.
        """
        manifest, folder, sent = store.manifest(step), store.path(step).name, 0
        there = self._files()
        for shard in manifest.shards:
            if there.get((step, shard.file)) == shard.size:
                continue
            file = store.path(step) / shard.file
            if not file.is_file() or file.stat().st_size != shard.size:
                raise CheckpointError(f"shard {file} is missing or torn: it is not copied to {self.url}")
            self._do(lambda obs, path=f"{folder}/{shard.file}", file=file: obs.put(self._store, path, file))
            sent += shard.size
        self._do(lambda obs: obs.put(self._store, f"{folder}/{_MANIFEST}", manifest.to_json().encode()))
        return sent

    def manifest(self, step: int) -> Manifest:
        """The manifest of ``step``.

        Raises:
            CheckpointError: there is none, or it is corrupt, or the store does not answer.
        """
        return self._manifest(step, self._files())

    def _manifest(self, step: int, files: Mapping[tuple[int, str], int]) -> Manifest:
        place = f"step-{step:010d}/{_MANIFEST}"
        size = files.get((step, _MANIFEST))
        if size is None:
            known = ", ".join(map(str, _whole(files))) or "none"
            raise CheckpointError(f"{self.url} has no whole checkpoint of step {step}: there are {known}")
        check_size(size, f"{self.url}/{place}")
        text = self._do(lambda obs: bytes(obs.get(self._store, place).bytes())).decode("utf-8", "replace")
        found = Manifest.from_json(text, f"{self.url}/{place}")
        if found.step != step:
            raise CheckpointError(f"{self.url}/{place} is the manifest of step {found.step}: use another checkpoint")
        return found

    def pull(self, store: CheckpointStore, step: int | None = None) -> Manifest:
        """Copy a checkpoint (the newest whole one) into ``store``; every byte is compared with the manifest's hashes.

        Raises:
            CheckpointError: there is none, it is damaged, or the store does not answer.
        """
        files = self._files()
        if step is not None:
            return self._pull(store, step, files)
        failed = "it has none"
        for newest in reversed(_whole(files)):
            try:
                return self._pull(store, newest, files)
            except FarflungError as error:
                failed = str(error)
        raise CheckpointError(f"{self.url} holds no whole checkpoint: {failed}")

    def prune(self, keep: int, every: int = 0, for_ever: int = 0) -> tuple[int, ...]:
        """As ``CheckpointStore.prune``.

        Raises:
            CheckpointError: the store refuses.
        """
        files = self._files()
        steps = _whole(files)
        if not steps:
            return ()
        kept = kept_steps(steps, keep, every, for_ever)
        gone = sorted({step for step, _ in files if step < steps[-1] and step not in kept})
        for step in gone:
            names = sorted((name for one, name in files if one == step), key=lambda name: name != _MANIFEST)
            for name in names:
                self._do(lambda obs, path=f"step-{step:010d}/{name}": obs.delete(self._store, path))
        return tuple(gone)

    def _pull(self, store: CheckpointStore, step: int, files: Mapping[tuple[int, str], int]) -> Manifest:
        manifest = self._manifest(step, files)
        for shard in manifest.shards:
            size = files.get((step, shard.file), 0)
            if size != shard.size:  # before any of it is fetched
                raise CheckpointError(f"{self.url}, step {step}: {shard.file} has {size} bytes, its manifest says {shard.size}")
            name = shard.file.removesuffix(".safetensors").rpartition("-")[0]
            found = store.store_shard(step, name, self._pieces(f"step-{step:010d}/{shard.file}", shard.size))
            if (found.file, found.size, found.sha256) != (shard.file, shard.size, shard.sha256):
                raise CheckpointError(f"{self.url}, step {step}: {shard.file} is corrupt (its hash differs from the manifest's)")
        store.write_manifest(manifest)
        return manifest

    def _pieces(self, path: str, size: int) -> Iterator[bytes]:
        """What lies at ``path``, but not more than one byte over ``size``: that is enough to be another content."""
        stream = self._do(lambda obs: obs.get(self._store, path).stream(min_chunk_size=_CHUNK))
        chunks = iter(stream)
        while (chunk := self._do(lambda _: next(chunks, None))) is not None:
            yield bytes(chunk)[: size + 1]
            size -= len(chunk)
            if size < 0:
                return

    def _files(self) -> dict[tuple[int, str], int]:
        """(Step, name) -> bytes, of what is there."""
        found: dict[tuple[int, str], int] = {}
        for batch in self._do(lambda obs: list(obs.list(self._store))):
            for entry in batch:
                folder, _, name = str(entry["path"]).rpartition("/")
                match = _STEP.fullmatch(folder)
                if match is not None:
                    found[int(match[1]), name] = int(entry["size"])
        return found

    def _do(self, request: Any) -> Any:
        import obstore

        try:
            return request(obstore)
        except obstore.exceptions.BaseError as error:
            raise CheckpointError(f"{self.url} can't be used: {short(error)}; check its name, keys and endpoint") from None
        except OSError as error:  # what obstore raises for a file that is not there, or for a local store
            raise CheckpointError(f"{self.url} can't be used: {short(error)}; check its name, keys and endpoint") from None


def _whole(files: Mapping[tuple[int, str], int]) -> tuple[int, ...]:
    return tuple(sorted(step for step, name in files if name == _MANIFEST))
