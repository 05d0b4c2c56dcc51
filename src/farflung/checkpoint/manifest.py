"""The manifest: written last, in one go; a checkpoint without a sound manifest does not exist."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from farflung.errors import CheckpointError, VersionError
from farflung.graph.ir import DTYPES, State, StateKind, TensorSpec
from farflung.ids import content_hash
from farflung.job import JobSpec, from_json, training_hash

__all__ = ["MANIFEST_VERSION", "OPTIMIZER", "Manifest", "ShardRecord", "TensorRecord", "check_resume", "check_size"]

MANIFEST_VERSION = 1
#: Names, shapes and hashes of 100,000 tensors take less.
_MOST = 256 << 20
#: What names of optimizer slots begin with: ``optimizer/<slot>/<parameter>``; everything else is a state of the graph.
OPTIMIZER = "optimizer/"
_MAX_BYTES = 1 << 28
#: An error lists this many settings, each value with this many characters.
_LISTED, _LONGEST = 4, 40
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.safetensors")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecord:
    """A tensor of a shard, with the CRC-32 of its bytes, so that a slice is checked without its shard's hash."""

    name: str
    spec: TensorSpec
    crc32: int

    @property
    def kind(self) -> str:
        """``state`` (parameter or buffer) or ``optimizer``."""
        return "optimizer" if self.name.startswith(OPTIMIZER) else "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """A whole shard: ``file`` in the checkpoint's folder, ``size`` in bytes, SHA-256 of the file."""

    file: str
    size: int
    sha256: str
    tensors: tuple[TensorRecord, ...]

    def to_json(self) -> str:
        """As JSON, to travel from the machine that wrote the shard to the one that writes the manifest."""
        return json.dumps(_shard_json(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ShardRecord:
        """Read what ``to_json`` wrote.

        Raises:
            CheckpointError: the text is no shard's record.
        """
        try:
            return _shard(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError("a shard's record is torn or malformed: write the checkpoint again") from None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint is.

    ``step``: steps that were gone through. ``job``, ``plan``: JSON texts. ``ledger``: what of them the states are made of:
    ``steps`` and ``samples`` that were committed, those skipped or rolled back left out.
    ``aliases``: further names of tied parameters. ``notes``: what an export needs (e.g. ``config``).
    A tensor that several shards hold (a tied parameter on several stages) is read from the first.
    """

    step: int
    job: str
    graph_hash: str
    plan: str = ""
    shards: tuple[ShardRecord, ...]
    ledger: Mapping[str, int] = field(default_factory=dict)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    version: int = MANIFEST_VERSION

    @cached_property
    def home(self) -> Mapping[str, tuple[ShardRecord, TensorRecord]]:
        """Tensor name -> the shard and record to read it from.

        Raises:
            CheckpointError: two shards disagree on a tensor.
        """
        found: dict[str, tuple[ShardRecord, TensorRecord]] = {}
        for shard in self.shards:
            for record in shard.tensors:
                first = found.setdefault(record.name, (shard, record))[1]
                if first != record:
                    raise CheckpointError(
                        f"checkpoint of step {self.step}: shards {found[record.name][0].file} and {shard.file} hold different "
                        f"values of {record.name!r}; the copies of a shared tensor must be equal"
                    )
        return found

    @property
    def states(self) -> tuple[str, ...]:
        """Names of parameters and buffers."""
        return tuple(name for name in self.home if not name.startswith(OPTIMIZER))

    @property
    def optimizer(self) -> tuple[str, ...]:
        """Names of optimizer slots, ``<slot>/<parameter>``."""
        return tuple(name.removeprefix(OPTIMIZER) for name in self.home if name.startswith(OPTIMIZER))

    def to_json(self) -> str:
        """One JSON text with its own hash."""
        body = {
            "format": "farflung-checkpoint",
            "version": self.version,
            "step": self.step,
            "graph_hash": self.graph_hash,
            "ledger": dict(self.ledger),
            "shards": [_shard_json(shard) for shard in self.shards],
            "aliases": {name: list(others) for name, others in self.aliases.items()},
            "notes": dict(self.notes),
            "job": self.job,
            "plan": self.plan,
        }
        return json.dumps({**body, "sha256": content_hash(_canonical(body))}, indent=1)

    @classmethod
    def from_json(cls, text: str, name: str = "manifest") -> Manifest:
        """Read what ``to_json`` wrote; ``name`` begins error texts.

        Raises:
            CheckpointError: the text is torn, corrupt or too large.
            VersionError: it was written by a newer farflung.
        """
        if len(text) > _MAX_BYTES:
            raise CheckpointError(f"{name} has {len(text)} characters, at most {_MAX_BYTES} are read")
        try:
            body = json.loads(text)
            if body["format"] != "farflung-checkpoint":
                raise CheckpointError(f"{name} is not a farflung checkpoint's manifest")
            if body["version"] != MANIFEST_VERSION:
                raise VersionError(
                    f"{name} has version {body['version']}, this farflung reads {MANIFEST_VERSION}: use the one that wrote it"
                )
            if body.pop("sha256") != content_hash(_canonical(body)):
                raise CheckpointError(f"{name} is corrupt (its hash differs): use an older checkpoint")
            return cls._from_body(body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(f"{name} is torn or no manifest: use an older checkpoint") from None

    @classmethod
    def _from_body(cls, body: Mapping[str, Any]) -> Manifest:
        return cls(
            step=int(body["step"]),
            job=str(body["job"]),
            graph_hash=str(body["graph_hash"]),
            plan=str(body["plan"]),
            shards=tuple(_shard(item) for item in body["shards"]),
            ledger={str(key): int(value) for key, value in body["ledger"].items()},
            aliases={str(key): tuple(map(str, value)) for key, value in body["aliases"].items()},
            notes={str(key): str(value) for key, value in body["notes"].items()},
        )


def check_resume(manifest: Manifest, graph_hash: str, job: JobSpec, states: Sequence[State] = ()) -> None:
    """See that ``job`` may go on from ``manifest``: the same graph, and the same numbers in each step.

    ``states``: those of the job's graph, of which an error names the first that differs.

    Raises:
        CheckpointError: the graph differs, or a field of the job that decides the numbers.
    """
    where = f"the checkpoint of step {manifest.step}"
    if manifest.graph_hash != graph_hash:
        raise CheckpointError(
            f"{where} belongs to another model ({_other_state(manifest, states) or _other_graph(manifest, graph_hash)}): "
            "resume with the model that wrote it, or load its exported weights with weights.source = 'file'"
        )
    held = from_json(manifest.job)
    if training_hash(held) != training_hash(job):
        changed = [name for name in JobSpec.model_fields if training_hash(held) != training_hash(_with(held, job, name))]
        differences = [text for name in changed for text in _differences(name, getattr(held, name), getattr(job, name))]
        more = f" and {len(differences) - _LISTED} more" if len(differences) > _LISTED else ""
        raise CheckpointError(
            f"{where} was written by a job with other settings ({', '.join(differences[:_LISTED])}{more}): set them back, "
            "or load its exported weights with weights.source = 'file' to begin anew"
        )


def _other_graph(manifest: Manifest, graph_hash: str) -> str:
    return f"graph {manifest.graph_hash[:12]}, this job has {graph_hash[:12]}"


def _other_state(manifest: Manifest, states: Sequence[State]) -> str:
    """Return the first parameter or buffer whose presence or shape differs (empty: there is none, or no states are given)."""
    kept = [state for state in states if state.persistent and state.kind is not StateKind.CONSTANT]
    now = {state.name: state.spec for state in kept}
    held = {name: manifest.home[name][1].spec for name in manifest.states}
    for name in dict.fromkeys([*now, *held]) if now else ():
        if name not in held:
            return f"the checkpoint lacks {name!r}"
        if name not in now:
            return f"this job's model lacks {name!r}"
        if held[name] != now[name]:
            (dtype, shape), (other, size) = ((spec.dtype, list(spec.shape)) for spec in (held[name], now[name]))
            return f"{name!r} is {dtype} {shape} in the checkpoint and {other} {size} in this job's model"
    return ""


def _differences(path: str, held: object, now: object) -> list[str]:
    """Return ``key: old -> new`` for each value that differs; tables and lists are compared item by item."""
    if isinstance(held, BaseModel) and isinstance(now, BaseModel) and type(held) is type(now):
        names = type(held).model_fields
        return [text for key in names for text in _differences(f"{path}.{key}", getattr(held, key), getattr(now, key))]
    if path == "optimizer.rules":
        return [] if held == now else ["the update that the optimizer's code makes"]
    if path == "schedule.values":
        return []  # a run may continue with other values
    if path == "schedule.name":
        held, now = ("a function" if name == "values" else name for name in (held, now))
    return [] if held == now else [f"{path}: {_shown(held)} -> {_shown(now)}"]


def _shown(value: object) -> str:
    """Return a short text of a setting: a string as itself, a table as JSON."""
    plain = value.model_dump_json(exclude_defaults=True) if isinstance(value, BaseModel) else value
    text = "nothing" if value is None else str(list(value)) if isinstance(value, tuple) else str(plain)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _with(held: JobSpec, job: JobSpec, name: str) -> JobSpec:
    return held.model_copy(update={name: getattr(job, name)})


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _shard_json(shard: ShardRecord) -> dict[str, Any]:
    tensors = {record.name: [record.spec.dtype, list(record.spec.shape), record.crc32] for record in shard.tensors}
    return {"file": shard.file, "size": shard.size, "sha256": shard.sha256, "tensors": tensors}


def _shard(item: Mapping[str, Any]) -> ShardRecord:
    file, sha256 = item["file"], item["sha256"]
    if not _FILE.fullmatch(file) or not _HASH.fullmatch(sha256):
        raise ValueError("not a shard's file name and hash")
    tensors = []
    for name, (dtype, shape, crc32) in item["tensors"].items():
        if dtype not in DTYPES or any(not isinstance(count, int) or count < 0 for count in shape):
            raise ValueError("not a tensor")
        tensors.append(TensorRecord(name=name, spec=TensorSpec(dtype=dtype, shape=tuple(shape)), crc32=int(crc32)))
    return ShardRecord(file=file, size=int(item["size"]), sha256=sha256, tensors=tuple(tensors))


def check_size(size: int, name: str) -> None:
    """Refuse to read a manifest of ``size`` bytes called ``name``, if no true one is that long.

    Raises:
        CheckpointError: it is too long.
    """
    if size > _MOST:
        raise CheckpointError(f"{name} has {size} bytes, no manifest has more than {_MOST}: use another checkpoint")
