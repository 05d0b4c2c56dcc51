"""A checkpoint whose base is stored in 8 or 4 bits, read as if it held whole weights: for exports."""

from __future__ import annotations

import json
from collections.abc import Iterable

from farflung.checkpoint.export import States
from farflung.checkpoint.manifest import Manifest
from farflung.checkpoint.safetensors import Array
from farflung.errors import CheckpointError
from farflung.graph.ir import TensorSpec
from farflung.graph.quantized_weights import METHODS, whole_weight

__all__ = ["WholeBase", "whole_states"]

_CODES, _SCALES, _WEIGHT = ".codes", ".scales", ".weight"


def whole_states(reader: States) -> States:
    """The states of a checkpoint with whole weights, in float32 where the run stored codes.

    Raises:
        CheckpointError: the checkpoint's note on its codes is malformed.
    """
    text = reader.manifest.notes.get("quantized")
    if text is None:
        return reader
    try:
        method = json.loads(text)["method"]
    except (ValueError, KeyError, TypeError):
        method = None
    if method not in METHODS:
        raise CheckpointError("the checkpoint's note on its quantized base is malformed: use another checkpoint")
    return WholeBase(reader, method)


class WholeBase:
    """``<layer>.weight`` stands for ``<layer>.codes`` and ``<layer>.scales``, one at a time in memory."""

    def __init__(self, reader: States, method: str) -> None:
        self._reader, self._method = reader, method
        known = set(reader.states)
        self._layers = {
            name.removesuffix(_CODES) for name in known if name.endswith(_CODES) and name.removesuffix(_CODES) + _SCALES in known
        }

    @property
    def manifest(self) -> Manifest:
        """The manifest of the checkpoint, which lists codes and scales."""
        return self._reader.manifest

    @property
    def states(self) -> tuple[str, ...]:
        """The names of parameters and buffers, with whole weights."""
        plain = [name for name in self._reader.states if name.rpartition(".")[0] not in self._layers or name.endswith(".bias")]
        return (*plain, *(layer + _WEIGHT for layer in sorted(self._layers)))

    def spec(self, name: str) -> TensorSpec:
        """Element type and shape of a state."""
        layer = name.removesuffix(_WEIGHT)
        if layer not in self._layers:
            return self._reader.spec(name)
        rows, columns = self._reader.spec(layer + _CODES).shape
        return TensorSpec(dtype="float32", shape=(rows, columns if self._method == "int8" else 2 * columns))

    def read(self, names: Iterable[str]) -> dict[str, Array]:
        """States by name."""
        return {name: self._read(name) for name in names}

    def _read(self, name: str) -> Array:
        layer = name.removesuffix(_WEIGHT)
        if layer not in self._layers:
            return self._reader.read([name])[name]
        codes, scales = (self._reader.read([layer + part])[layer + part] for part in (_CODES, _SCALES))
        return whole_weight(self._method, codes, scales)
