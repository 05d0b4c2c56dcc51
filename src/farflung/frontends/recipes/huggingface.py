"""Models of the ``transformers`` library behind wrappers whose forward gives the scalar loss.

``gpt2`` and ``llama`` learn the next token (the library shifts the labels), ``bert`` and ``albert`` masked tokens: the mask is
drawn inside the graph, so the data stay plain text. All arguments that the library's configuration knows are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from farflung.errors import InputError
from farflung.frontends.recipes.adapters import (
    ADAPTER_ARGUMENTS,
    adapter_notes,
    adapter_settings,
    import_library,
    wrap_with_adapters,
)
from farflung.frontends.recipes.base import CacheShape, Form, Recipe, tokens
from farflung.frontends.recipes.serving import library_run, serving_form, use_library_attention
from farflung.known_names import known_names

__all__ = ["CausalLM", "MaskedLM", "huggingface"]

_CLASSES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "bert": ("BertConfig", "BertForMaskedLM"),
    "albert": ("AlbertConfig", "AlbertForMaskedLM"),
}
_LENGTH = {"gpt2": "n_positions"}
OWN_ARGUMENTS = ("sequence", "folder", "mask_fraction", "mask_token_id", *ADAPTER_ARGUMENTS)
_IGNORED = -100


class CausalLM(nn.Module):
    """``forward(input_ids, labels)``, both ``int64 (batch, sequence)`` -> loss; without labels the logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        result = self.model(input_ids=input_ids, labels=labels, use_cache=False)
        found: Tensor = result.logits if labels is None else result.loss
        return found


class MaskedLM(nn.Module):
    """``forward(input_ids, labels)``, both ``int64 (batch, sequence)`` -> loss at the masked places.

    With ``mask_fraction`` 0 nothing is masked here: the inputs come masked and the labels hold -100 elsewhere.
    """

    def __init__(self, model: nn.Module, mask_fraction: float, mask_token_id: int) -> None:
        super().__init__()
        self.model = model
        self.mask_fraction = mask_fraction
        self.mask_token_id = mask_token_id

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        if self.mask_fraction:
            chances = torch.full(labels.shape, self.mask_fraction, device=labels.device)
            masked = torch.bernoulli(chances).bool()
            input_ids = input_ids.masked_fill(masked, self.mask_token_id)
            labels = labels.masked_fill(~masked, _IGNORED)
        loss: Tensor = self.model(input_ids=input_ids, labels=labels).loss
        return loss


def huggingface(kind: str, **args: Any) -> Recipe:
    """A recipe for ``kind``: ``gpt2``, ``llama``, ``bert`` or ``albert``.

    Arguments: ``sequence`` (default 128), ``folder`` (a local folder with the configuration of a trained model), those of the
    library's configuration class, ``mask_fraction`` (default 0.15) and ``mask_token_id`` for masked models; ``lora_rank`` (0:
    no adapters), ``lora_alpha``, ``lora_dropout`` and ``lora_targets`` (comma-separated module names) add LoRA adapters and
    freeze the rest.

    Raises:
        InputError: transformers (or peft) is not installed, or an argument is unknown.
    """
    transformers = import_library("transformers", "pip install 'farflung[hf]'")
    config_class, model_class = (getattr(transformers, name) for name in _CLASSES[kind])
    own = {key: args.pop(key) for key in OWN_ARGUMENTS if key in args}
    sequence = int(own.get("sequence", 128))
    config = _config(kind, config_class, own.get("folder"), args, sequence)
    settings = adapter_settings(own, fan_in_fan_out=kind == "gpt2")
    masked = kind in ("bert", "albert")

    def make(change: Callable[[Any], Any] = lambda model: model) -> nn.Module:
        model = change(model_class._from_config(config, attn_implementation="sdpa"))
        model = (model if settings is None else wrap_with_adapters(model, settings)).train()
        if not masked:
            for part in model.modules():  # the library knows no loss by the name GPT2LMHeadModel, warns, and uses this one
                if getattr(part, "loss_type", "") is None:
                    part.loss_type = "ForCausalLM"
            return CausalLM(model)
        mask_token = int(own.get("mask_token_id", min(103, config.vocab_size - 1)))
        return MaskedLM(model, float(own.get("mask_fraction", 0.15)), mask_token)

    return Recipe(
        name=kind,
        train=Form(factory=make, example_inputs=tokens(sequence, 2)),
        evaluate=Form(factory=make, example_inputs=tokens(sequence, 2)),
        generate=None if masked else Form(factory=make, example_inputs=tokens(sequence, 1), outputs=("logits",)),
        serve=None if masked else partial(_served, make),
        inputs=("input_ids",),
        labels=("labels",),
        notes=_notes(config, model_class.__name__) | adapter_notes(settings, "model.base_model.model."),
    )


def _served(make: Callable[[Callable[[Any], Any]], nn.Module], shape: CacheShape) -> Form:
    """The form with key-value caches."""

    def cached() -> nn.Module:
        return make(use_library_attention)

    def empty() -> nn.Module:
        with torch.device("meta"):
            return cached()

    def run(model: Any, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        return library_run(model.model, tokens, positions, wanted)

    return serving_form(cached, empty, run, shape)


def _notes(config: Any, architecture: str) -> dict[str, str]:
    """What an export to a folder for ``from_pretrained`` needs."""
    table = {**config.to_dict(), "architectures": [architecture]}
    return {"transformers": json.dumps(table, sort_keys=True, default=str), "prefix": "model."}


def _config(kind: str, config_class: Any, folder: str | None, args: dict[str, Any], sequence: int) -> Any:
    config = config_class.from_pretrained(folder, local_files_only=True) if folder else config_class()
    for key in args:
        if not hasattr(config, key):
            known = sorted(key for key in config.to_dict() if not key.startswith("_"))
            raise InputError(f"{kind}: unknown argument {key!r}: {known_names(key, (*OWN_ARGUMENTS, *known))}")
    if folder:
        for key, value in args.items():
            setattr(config, key, value)
    else:
        config = config_class(**args)  # so that what the class derives from them (head sizes) is derived
    length = _LENGTH.get(kind, "max_position_embeddings")
    if length not in args and not folder:
        setattr(config, length, max(sequence, getattr(config, length)))
    if sequence > getattr(config, length):
        raise InputError(f"{kind}: sequence {sequence} is longer than {length} {getattr(config, length)}: raise {length}")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        number = getattr(config, key, None)
        if isinstance(number, int) and number >= config.vocab_size:
            setattr(config, key, None)
    return config
