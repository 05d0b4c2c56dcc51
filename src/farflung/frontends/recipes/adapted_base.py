"""Adapters on a frozen base: LoRA, DoRA, and a base in 8 or 4 bits; and what their first values are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from farflung.errors import InputError
from farflung.frontends.quantized_linear import QuantizedLinear, quantize_linears
from farflung.frontends.recipes.adapters import adapter_settings, insert_adapters
from farflung.graph.quantized_weights import METHODS
from farflung.graph.weight_expressions import Expression
from farflung.known_names import known_names

__all__ = ["BASE_ARGUMENTS", "BaseAdapters", "adapted_sources"]

#: Arguments of the recipe ``hf`` beside those of adapters.
BASE_ARGUMENTS = ("lora_dora", "quantize")
#: What peft calls DoRA's magnitudes, and what it puts between a layer and its weight.
_MAGNITUDE, _WRAPPED = ".lora_magnitude_vector.", ".base_layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseAdapters:
    """``settings``: peft's (``None``: no adapters). ``method``: how the base is quantized (empty: it is not)."""

    settings: Any
    method: str

    @classmethod
    def of(cls, own: Mapping[str, Any], model: nn.Module) -> BaseAdapters:
        """Read the recipe's arguments ``own`` for ``model``, which has no weights.

        Raises:
            InputError: an argument is unknown, or does not fit the others.
        """
        conv = any(type(part).__name__ == "Conv1D" for part in model.modules())
        settings = adapter_settings(own, fan_in_fan_out=conv)
        method = str(own.get("quantize", ""))
        if method and method not in METHODS:
            raise InputError(f"hf: model.args.quantize = {method!r}: {known_names(method, METHODS)}")
        if settings is None and (stray := next((key for key in BASE_ARGUMENTS if own.get(key)), None)):
            raise InputError(f"hf: model.args.{stray} = {own[stray]!r} without adapters: set lora_rank, or remove {stray}")
        if settings is not None:
            settings.use_dora = bool(own.get("lora_dora", False))
        return cls(settings=settings, method=method)

    def __call__(self, model: nn.Module) -> nn.Module:
        """``model`` with adapters, its base frozen and quantized; changed in place.

        Raises:
            InputError: no module is a target, or DoRA has a target that is no linear layer.
        """
        if self.settings is None:
            return model
        insert_adapters(model, self.settings)
        if self.settings.use_dora:
            _check_magnitudes(model)
        if self.method:
            body = str(getattr(model, "base_model_prefix", ""))
            inside = f"{body}." if hasattr(model, body) else ""
            quantize_linears(model, self.method, lambda name: name.startswith(inside) and ".lora_" not in name)
        return model

    @property
    def notes(self) -> dict[str, str]:
        """What an export needs to know of the quantized base."""
        return {"quantized": json.dumps({"method": self.method})} if self.method else {}


def _check_magnitudes(model: nn.Module) -> None:
    for name, _ in model.named_parameters():
        layer, found, _ = name.partition(_MAGNITUDE)
        base = model.get_submodule(layer + _WRAPPED) if found else None
        if base is not None and type(base) is not nn.Linear and type(base).__name__ != "Conv1D":
            raise InputError(
                f"lora_dora: {layer} is a {type(base).__name__}, and DoRA needs linear layers: name others in lora_targets"
            )


def adapted_sources(model: nn.Module, plain: Mapping[str, Expression]) -> dict[str, Expression]:
    """State of ``model``, which has adapters, -> what it is made of; ``plain`` says it for the model without adapters.

    Adapters themselves have no source: they begin with their initializers.
    """
    quantized = {name: part for name, part in model.named_modules() if isinstance(part, QuantizedLinear)}
    found: dict[str, Expression] = {}
    for name in model.state_dict():
        layer, _, last = name.rpartition(".")
        weight = f"{layer.removesuffix(_WRAPPED)}.weight"
        if layer in quantized and last in ("codes", "scales"):
            if weight in plain:
                found[name] = [f"{quantized[layer].method}_{last}", plain[weight]]
        elif _MAGNITUDE in name:
            owner = name.partition(_MAGNITUDE)[0]
            if f"{owner}.weight" in plain:
                found[name] = _magnitude(model.get_submodule(owner + _WRAPPED), plain[f"{owner}.weight"])
        elif (other := name.replace(f"{_WRAPPED}.", ".")) in plain:
            found[name] = plain[other]
    return found


def _magnitude(base: nn.Module, weight: Expression) -> Expression:
    """The norm of each row of the weight as the layer computes with it."""
    if isinstance(base, QuantizedLinear):
        weight = [f"{base.method}_rounded", weight]
    transposed = base.transposed if isinstance(base, QuantizedLinear) else type(base).__name__ == "Conv1D"
    return ["norm", ["transpose", 0, 1, weight]] if transposed else ["norm", weight]
