"""LoRA and DoRA adapters in a checkpoint: merged into the weights that they stand beside, or alone for ``peft``.

``peft`` calls a wrapped layer's own weight ``<layer>.base_layer.weight`` and its adapters ``<layer>.lora_A.default.weight``
``(rank, inside)`` and ``<layer>.lora_B.default.weight`` ``(outside, rank)``. The layer computes ``W x + scale B A x`` with
``scale = lora_alpha / rank``, so ``W + scale B A`` does the same without them (Hu et al., 2021; up to rounding). DoRA scales each
row of that sum to a trained magnitude (Liu et al., 2024). A base in 8 or 4 bits has codes and scales in place of the weight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farflung.checkpoint.export import export_file
from farflung.checkpoint.reader import CheckpointReader
from farflung.checkpoint.safetensors import Array
from farflung.checkpoint.store import write_file
from farflung.errors import CheckpointError, InputError

__all__ = ["Adapters", "export_adapters"]

_ADAPTER = re.compile(r"(.*)\.lora_(A|B|magnitude_vector)\.default\.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """``config`` is peft's (``r``, ``lora_alpha``, ``fan_in_fan_out``). ``layers``: the wrapped layers' names."""

    config: Mapping[str, Any]
    layers: frozenset[str]

    @classmethod
    def of(cls, reader: CheckpointReader) -> Adapters | None:
        """The adapters of a checkpoint (None: it has none).

        Raises:
            CheckpointError: they are of a kind that can't be exported.
        """
        text = reader.manifest.notes.get("lora")
        states = set(reader.manifest.states)
        strange = [name for name in states if ".lora_" in name and not _ADAPTER.fullmatch(name)]
        if text is None or strange:
            if text is None and not any(".lora_" in name for name in states):
                return None
            raise CheckpointError(
                f"adapters such as {min(strange or states)!r} can't be merged or exported alone: export to one file instead"
            )
        layers = frozenset(match[1] for match in map(_ADAPTER.fullmatch, states) if match)
        try:
            config = dict(json.loads(text))
            float(config["lora_alpha"]) / int(config["r"])
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            raise CheckpointError("the checkpoint's note on its adapters is malformed: use another checkpoint") from None
        return cls(config=config, layers=layers)

    def is_adapter(self, state: str) -> bool:
        """Whether ``state`` belongs to an adapter."""
        return _ADAPTER.fullmatch(state) is not None

    def plain_name(self, state: str) -> str:
        """The name that ``state`` has in the model without adapters, behind the same prefix."""
        return state.replace(".base_layer.", ".")

    def merge(self, reader: CheckpointReader, state: str, value: Array) -> Array:
        """``value`` of ``state`` with its adapter merged, computed in float32."""
        layer = state.removesuffix(".base_layer.weight")
        if layer == state or layer not in self.layers:
            return value
        down, up = (self._part(reader, layer, part).astype(np.float32) for part in "AB")
        change: Array = up @ down
        if self.config.get("fan_in_fan_out") and change.T.shape == value.shape:
            change = change.T
        if change.shape != value.shape:
            raise CheckpointError(f"the adapter of {layer!r} gives {list(change.shape)}, its weight has {list(value.shape)}")
        scale = np.float32(float(self.config["lora_alpha"]) / int(self.config["r"]))
        merged: Array = value.astype(np.float32) + scale * change
        if self.config.get("use_dora"):
            axis = 0 if self.config.get("fan_in_fan_out") else 1
            magnitudes = np.expand_dims(self._part(reader, layer, "magnitude_vector").astype(np.float32), axis)
            merged = merged * (magnitudes / np.linalg.norm(merged, axis=axis, keepdims=True))
        return merged.astype(value.dtype)

    @staticmethod
    def _part(reader: CheckpointReader, layer: str, part: str) -> Array:
        name = f"{layer}.lora_{part}.default.weight"
        found: Array = reader.read([name])[name]
        return found


def export_adapters(reader: CheckpointReader, folder: str | Path) -> Path:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json`` for ``PeftModel.from_pretrained``; returns the folder.

    Raises:
        InputError: the checkpoint has no adapters.
        CheckpointError: the export fails.
    """
    adapters = Adapters.of(reader)
    if adapters is None:
        raise InputError("the checkpoint has no adapters (set lora_rank among the recipe's arguments): export it whole")
    names = {state: _name_for_peft(state) for state in reader.manifest.states if adapters.is_adapter(state)}
    place = Path(folder)
    export_file(reader, place / "adapter_model.safetensors", names=names, aliases=False, only=names)
    config = json.dumps(dict(adapters.config), indent=2, sort_keys=True)
    write_file(place / "adapter_config.json", (config.encode() + b"\n",))
    return place


def _name_for_peft(state: str) -> str:
    """The name of ``state`` in a file of ``peft``; its prefix is there in every file."""
    prefix = "base_model.model."
    plain = state[state.index(prefix) :] if prefix in state else prefix + state
    return plain.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector").replace(".default.weight", ".weight")
