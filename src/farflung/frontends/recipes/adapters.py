"""Adapters of the ``peft`` library (LoRA, DoRA) in the models of recipes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from farflung.errors import InputError

__all__ = ["ADAPTER_ARGUMENTS", "adapter_notes", "adapter_settings", "import_library", "insert_adapters", "wrap_with_adapters"]

#: Arguments of recipes that accept adapters.
ADAPTER_ARGUMENTS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets")


def import_library(name: str, remedy: str) -> Any:
    """The library ``name``.

    Raises:
        InputError: it is not installed; the text has the ``remedy``.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"this recipe needs the library {name}: {remedy}") from error


def adapter_settings(own: Mapping[str, Any], *, fan_in_fan_out: bool) -> Any:
    """``LoraConfig`` for the recipe's arguments ``own`` (``None``: no adapters).

    Raises:
        InputError: peft is not installed, or an argument is given without a rank.
    """
    rank = int(own.get("lora_rank", 0))
    if rank == 0:
        if stray := [key for key in ADAPTER_ARGUMENTS[1:] if own.get(key)]:
            raise InputError(f"{stray[0]} = {own[stray[0]]!r} without adapters: set lora_rank, or remove {stray[0]}")
        return None
    targets = own.get("lora_targets")
    return import_library("peft", "pip install peft").LoraConfig(
        r=rank,
        lora_alpha=int(own.get("lora_alpha", 2 * rank)),
        lora_dropout=float(own.get("lora_dropout", 0.0)),
        use_dora=bool(own.get("lora_dora", False)),
        fan_in_fan_out=fan_in_fan_out,
        target_modules=_targets(targets),
    )


def _targets(text: str | None) -> Any:
    if not text or text == "all-linear":
        return text or None
    return text.split(",")


def wrap_with_adapters(model: nn.Module, settings: Any) -> nn.Module:
    """``model`` inside ``PeftModel``; the names of its states get a prefix."""
    found: nn.Module = import_library("peft", "pip install peft").get_peft_model(model, settings)
    return found


def insert_adapters(model: nn.Module, settings: Any) -> None:
    """Put adapters into ``model``, and freeze everything else; other names stay.

    Raises:
        InputError: no module of the model is a target.
    """
    peft = import_library("peft", "pip install peft")
    try:
        peft.inject_adapter_in_model(settings, model)
    except ValueError as error:
        raise InputError(f"lora_targets: {error}") from None


def adapter_notes(settings: Any, prefix: str) -> dict[str, str]:
    """What an export needs later: peft's configuration, and the prefix of the states' names."""
    if settings is None:
        return {}
    table = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.to_dict().items()}
    return {"lora": json.dumps(table, sort_keys=True, default=str), "prefix": prefix}
