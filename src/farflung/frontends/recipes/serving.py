"""Language models as they are served: tokens of several requests in one row, with a key-value cache per attention layer.

A served model takes ``tokens`` and ``positions``, both ``int64 (1, tokens)``, ``slots``, ``int64 (tokens,)``, and ``wanted``,
``int64 (results,)``. It gives the ``logits`` ``(results, vocab)`` of the wanted tokens. All layers but attention treat each
token alone, so tokens of different requests can share a row. Attention becomes one operator, ``farflung.cached_attention``, whose
cache is a buffer of the attention layer. The buffer is a state like any other, so a plan counts its memory and a stage owns it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from farflung.errors import InputError
from farflung.frontends.recipes.base import CacheShape, Form
from farflung.frontends.torch.opaque import opaque_calls

__all__ = ["attend", "library_run", "serving_form", "use_library_attention"]

#: The name of the buffer of an attention layer.
_CACHE = "key_value_cache"
_ATTENTION = "farflung_cached"
#: Settings of a layer that change the result, and that ``farflung.cached_attention`` does not have.
_REFUSED = ("softcap", "s_aux", "position_bias", "cache_position_bias")

#: Of the keys of a layer: heads, dims of a head, and element type.
_Sizes = tuple[int, int, torch.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Where the tokens of the present forward stand. ``found`` collects the layers, if that is all the forward is for."""

    positions: Tensor
    slots: Tensor
    found: dict[nn.Module, _Sizes] | None = None


_ROW: ContextVar[_Row] = ContextVar("row of tokens")


def attend(layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, window: int = 0) -> Tensor:
    """Attend to the cache of ``layer`` and return ``(1, heads, tokens, dims)``.

    ``scale``: of the products (``None``: one over the root of the dims). ``window``: how many positions a token sees (0: all).

    Raises:
        InputError: keys and values have different sizes.
    """
    row = _ROW.get()
    if key.shape != value.shape or query.shape[-1] != value.shape[-1]:
        raise InputError(
            f"the model can't be served: an attention layer has keys of {list(key.shape)} and values of {list(value.shape)}; "
            "choose a model whose keys and values have equal sizes"
        )
    if row.found is not None:
        row.found[layer] = (key.shape[1], key.shape[3], key.dtype)
        return torch.empty_like(query)
    cache = getattr(layer, _CACHE)
    found: Tensor = torch.ops.farflung_capture.cached_attention.default(
        query, key, value, cache, row.positions, row.slots, query.shape[-1] ** -0.5 if scale is None else scale, window
    )
    return found


def _library_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """What layers of ``transformers`` call (``AttentionInterface``)."""
    strange = [name for name in _REFUSED if settings.get(name) is not None]
    if attention_mask is not None or not getattr(module, "is_causal", True):
        strange.append("a mask of its own")
    if strange:
        raise InputError(f"the model can't be served: its attention has {strange[0]}; choose a model with plain causal attention")
    found = attend(module, query, key, value, settings.get("scaling"), int(settings.get("sliding_window") or 0))
    return found.transpose(1, 2).contiguous(), None


@contextmanager
def _row(row: _Row) -> Iterator[None]:
    before = _ROW.set(row)
    try:
        yield
    finally:
        _ROW.reset(before)


def _cached_layers(model: nn.Module, run: Callable[..., Any]) -> dict[str, _Sizes]:
    """The layers that call ``attend`` when ``run(model, tokens, positions, wanted)`` is called.

    Raises:
        InputError: the model has no such layer, or it has others too.
    """
    found: dict[nn.Module, _Sizes] = {}
    with torch.device("meta"), torch.no_grad(), opaque_calls():
        whole = torch.zeros(1, 2, dtype=torch.int64)
        with _row(_Row(positions=whole, slots=whole[0], found=found)):
            run(model, whole, whole, whole[0])
    config: Any = getattr(model, "config", None) or getattr(getattr(model, "model", None), "config", None)
    layers = len(found) if config is None else config.get_text_config().num_hidden_layers
    if not found or len(found) != layers:
        raise InputError(
            f"the model can't be served: {len(found)} of its {layers} layers are causal attention with a key-value cache; "
            "choose a model whose layers all are"
        )
    return {name: found[part] for name, part in model.named_modules() if part in found}


def serving_form(
    make: Callable[[], nn.Module], empty: Callable[[], nn.Module], run: Callable[..., Tensor], shape: CacheShape
) -> Form:
    """The form of a served model. Its batch size is the number of tokens in a row.

    Args:
        make: makes the model.
        empty: makes it on the meta device.
        run: gives the logits ``(1, results, vocab)`` of ``(model, tokens, positions, wanted)``; its attention calls ``attend``.
        shape: of the caches.

    Raises:
        InputError: the model can't be served.
    """
    layers = _cached_layers(empty(), run)

    def factory() -> nn.Module:
        model = make().eval()
        for name, (groups, dims, dtype) in layers.items():
            cache = torch.zeros(2, shape.slots, groups, shape.context, dims, dtype=dtype)
            model.get_submodule(name).register_buffer(_CACHE, cache, persistent=False)

        def forward(tokens: Tensor, positions: Tensor, slots: Tensor, wanted: Tensor) -> Tensor:
            with _row(_Row(positions=positions, slots=slots)):
                return run(model, tokens, positions, wanted)[0]

        model.forward = forward
        return model

    return Form(factory=factory, example_inputs=lambda tokens: _example(tokens, shape), outputs=("logits",))


def _example(tokens: int, shape: CacheShape) -> dict[str, Tensor]:
    row = torch.zeros(1, tokens, dtype=torch.int64)
    wanted = torch.zeros(min(tokens, shape.slots), dtype=torch.int64)
    return {"tokens": row, "positions": row.clone(), "slots": row[0].clone(), "wanted": wanted}


def library_run(model: Any, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
    """The forward of a model of the ``transformers`` library."""
    forward = type(model).forward  # ``serving_form`` replaces that of the object
    result = forward(model, input_ids=tokens, position_ids=positions, logits_to_keep=wanted, use_cache=False)
    found: Tensor = result.logits
    return found


def use_library_attention(model: Any) -> Any:
    """Let the layers of a model of the ``transformers`` library call ``attend``.

    Raises:
        InputError: its forward takes no positions, or computes the logits of all tokens only.
    """
    from transformers import AttentionInterface

    missing = [name for name in ("position_ids", "logits_to_keep") if name not in inspect.signature(model.forward).parameters]
    if missing:
        raise InputError(f"the model can't be served: its forward has no argument {missing[0]}; choose another architecture")
    AttentionInterface.register(_ATTENTION, _library_attention)
    model.set_attn_implementation(_ATTENTION)
    return model
