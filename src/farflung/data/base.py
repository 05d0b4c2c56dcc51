"""What a source of data must offer, and how its fields meet a graph's placeholders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from farflung.errors import DataError, InputError
from farflung.graph.ir import TensorSpec
from farflung.job.spec import DataSpec

__all__ = ["Array", "Place", "Source", "Split", "assign", "bind", "compare_fingerprints", "outvoted"]

Array = NDArray[Any]
Split = Literal["train", "eval"]

#: Placeholder names that say which field they take.
_INPUTS = frozenset({"inputs", "input", "tokens", "input_ids", "images", "image", "pixel_values", "x", "idx"})
_LABELS = frozenset({"labels", "label", "targets", "target", "y"})
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a machine keeps data: ``base`` is the folder that relative paths start from, ``cache`` holds what can be remade.

    ``confined``: a job may read below ``base`` and the standard library only (for machines that serve other people's jobs).
    """

    base: Path
    cache: Path
    confined: bool = False


class Source(Protocol):
    """Samples numbered from 0, each with named fields. Reading is thread-safe."""

    @property
    def size(self) -> int:
        """Number of samples (may read or prepare files on first use)."""

    @property
    def names(self) -> tuple[str, ...]:
        """The fields, known without any file."""

    def spec(self, field: str) -> TensorSpec:
        """Element type and shape of one sample's ``field`` (no batch dimension)."""

    def batch(self, indices: NDArray[Any], fields: Collection[str]) -> dict[str, Array]:
        """The samples ``indices`` (int64): field -> array of shape ``(len(indices), *shape)``; only the fields asked for."""

    def check(self, fields: Collection[str] | None = None) -> None:
        """See that the files behind ``fields`` (None: all) are there and readable, without reading them whole.

        Raises:
            DataError: something is missing; the text has the path as the job names it, what is missing, and the remedy.
        """

    def fingerprint(self, fields: Collection[str] | None = None) -> dict[str, str]:
        """Content hashes by part; two machines whose fingerprints share a key must have equal values there."""


def compare_fingerprints(machines: Mapping[str, Mapping[str, str]]) -> None:
    """See that machines which read the same part of the data hold the same content.

    Raises:
        DataError: two machines differ; the text names them and the part.
    """
    seen: dict[str, tuple[str, str]] = {}
    for machine, parts in machines.items():
        for part, value in parts.items():
            first, held = seen.setdefault(part, (machine, value))
            if held != value:
                raise DataError(
                    f"{first} and {machine} hold different data: {part} is {held[:12]} on one and {value[:12]} on the other; "
                    "copy the same files to both, or give all readers one machine"
                )


def outvoted(machines: Mapping[str, Mapping[str, str]]) -> tuple[str, frozenset[str]]:
    """Return a machine whose content differs from what more machines hold, and these machines ("" and none: there is no such)."""
    for part in sorted({part for parts in machines.values() for part in parts}):
        holders: dict[str, set[str]] = {}
        for machine, parts in machines.items():
            if part in parts:
                holders.setdefault(parts[part], set()).add(machine)
        most, *rest = sorted(holders.values(), key=len, reverse=True)
        if rest and len(most) > len(rest[0]):
            return min(rest[0]), frozenset(most)
    return "", frozenset()


def assign(data: DataSpec, names: Sequence[str], placeholders: Sequence[str]) -> dict[str, str]:
    """Which field fills which placeholder, by name alone: placeholder -> field.

    ``names`` are the source's fields, ``placeholders`` stand in the order of the model's call. ``data.fields`` wins; then a
    placeholder that is called like a field or a usual name for inputs or labels; then the first takes the inputs and the
    last the labels. (A folder of arrays may hold further fields: name them in ``data.fields``.) A column of a dataset fills the
    placeholder of its name.

    ``labels`` beside ``input_ids`` follows the convention of the ``transformers`` library: the same tokens, the model shifts
    them itself. Any other name for the labels of text takes the next tokens.

    Raises:
        InputError: a placeholder has no field, or ``data.fields`` names something unknown.
    """
    for placeholder, field in data.fields.items():
        if placeholder not in placeholders:
            raise InputError(f"data.fields names {placeholder!r}, but the model's inputs are {', '.join(placeholders)}")
        if not _has_further(data) and field not in names:
            raise InputError(f"data.fields.{placeholder} = {field!r}: data.kind = {data.kind!r} has {', '.join(names)}")
    found: dict[str, str] = {}
    for number, placeholder in enumerate(placeholders):
        chosen = data.fields.get(placeholder) or _by_name(data, names, placeholder, placeholders)
        if chosen is None and number in (0, len(placeholders) - 1):
            chosen = "inputs" if number == 0 else _labels(data)
        if chosen is None:
            raise InputError(
                f"nothing fills the model's input {placeholder!r}: data.kind = {data.kind!r} has {', '.join(names)}; "
                f"say which one in data.fields, e.g. fields = {{ {placeholder} = {names[0]!r} }}"
            )
        found[placeholder] = chosen
    return found


def _by_name(data: DataSpec, names: Sequence[str], placeholder: str, placeholders: Sequence[str]) -> str | None:
    if data.kind == "dataset" and not data.tokenized:
        return placeholder  # a column
    if placeholder in _INPUTS:
        return "inputs"
    if placeholder in _LABELS:
        return "labels" if placeholder == "labels" and "input_ids" in placeholders else _labels(data)
    return placeholder if placeholder in names else None


def _has_further(data: DataSpec) -> bool:
    """Whether the data may have more fields than are known without the files."""
    return data.kind == "array" or (data.kind == "dataset" and not data.tokenized)


def _labels(data: DataSpec) -> str:
    return "targets" if data.tokenized else "labels"


def bind(
    data: DataSpec, source: Source, placeholders: Mapping[str, TensorSpec], wanted: Collection[str] | None = None
) -> dict[str, str]:
    """``assign``, then see that shapes and element types fit, for the placeholders ``wanted`` on this machine (None: all).

    ``placeholders`` maps names, in call order, to specs whose first dimension is the micro-batch.

    Raises:
        InputError: a placeholder has no field.
        DataError: a field doesn't fit its placeholder.
    """
    fields = assign(data, source.names, tuple(placeholders))
    chosen = {name: field for name, field in fields.items() if wanted is None or name in wanted}
    for name, field in chosen.items():
        _fit(name, placeholders[name], field, source.spec(field))
    return chosen


def _fit(name: str, placeholder: TensorSpec, field: str, spec: TensorSpec) -> None:
    if not placeholder.shape or placeholder.shape[1:] != spec.shape:
        hint = "set data.sequence, data.size or the model's arguments so that they agree"
        raise DataError(
            f"the model's input {name!r} takes {list(placeholder.shape[1:])} per sample, the data's {field!r} has "
            f"{list(spec.shape)}: {hint}"
        )
    if not _widens(spec.dtype, placeholder.dtype):
        raise DataError(
            f"the model's input {name!r} takes {placeholder.dtype}, the data's {field!r} is {spec.dtype}: "
            f"convert the files to {placeholder.dtype}"
        )


def _widens(source: str, target: str) -> bool:
    """Whether every value of ``source`` is one of ``target`` and means the same (no integers as floats: images need a scale)."""
    if source == target:
        return True
    if (source, target) in {("float16", "bfloat16"), ("bfloat16", "float16"), ("uint8", "int8")}:
        return False
    for order in (_INTEGERS, _FLOATS):
        if source in order and target in order:
            return target != "bool" and order.index(source) < order.index(target)
    return False
