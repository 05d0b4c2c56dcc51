"""What the files of a model call its states, and how the ``transformers`` library converts them.

The library renames tensors and changes their form when it loads a folder: old names, experts that are stored one by one. Its
own conversions run here on stand-ins for the tensors of the files, which record what is done to them. The record is data
(``graph.weight_expressions``), so a worker needs neither the library nor the tensors of other stages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from farflung.errors import CheckpointError
from farflung.graph.ir import TensorSpec
from farflung.graph.weight_expressions import Expression

__all__ = ["StandIn", "file_sources"]


def file_sources(model: nn.Module, names: Collection[str], spec_of: Callable[[str], TensorSpec]) -> dict[str, Expression]:
    """State of ``model`` -> what it is made of, for all states that the files have.

    Args:
        model: a model of ``transformers``; its weights may be on the meta device.
        names: the tensors of the files.
        spec_of: gives shape and element type of one.

    Raises:
        CheckpointError: the conversion of these files cannot be recorded.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    mapping: list[Any] = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    states: dict[str, Any] = model.state_dict()
    prefix = str(getattr(model, "base_model_prefix", ""))
    found: dict[str, Expression] = {}
    converted: dict[str, Any] = {}
    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, states)
        if target not in states and name in states:
            target, pattern = name, None
        if target not in states:
            continue
        if pattern is None:
            found[target] = name
        else:
            converter = converted.setdefault(target, deepcopy(by_pattern[pattern]))
            spec = spec_of(name)
            converter.add_tensor(target, name, pattern, _stand_in(name, spec.shape, getattr(torch, spec.dtype)))
    for target, converter in converted.items():
        for made, tensor in converter.convert(target, model=model, config=model.config).items():
            one = tensor[0] if isinstance(tensor, list) else tensor
            if not isinstance(one, StandIn):
                raise _unknown(type(one).__name__)
            found[made] = one.source
    return found


def _stand_in(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], StandIn]:
    return lambda: StandIn(torch.empty(shape, dtype=dtype, device="meta"), name)


class StandIn(torch.Tensor):
    """A tensor without values that knows what it is made of."""

    twin: torch.Tensor
    source: Expression

    @staticmethod
    def __new__(cls, twin: torch.Tensor, source: Expression) -> StandIn:
        made: StandIn = torch.Tensor._make_wrapper_subclass(cls, twin.shape, dtype=twin.dtype)
        made.twin, made.source = twin, source
        return made

    def __init__(self, twin: torch.Tensor, source: Expression) -> None:
        """Attributes are set by ``__new__``: a tensor has no constructor of its own."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # as PyTorch calls it
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain, named = pytree.tree_map_only(StandIn, lambda one: one.twin, (args, dict(kwargs or {})))
        named.pop("device", None)
        result = func(*plain, **named)
        many = result if isinstance(result, (list, tuple)) else [result]
        sources = _sources(str(func), args, plain, many)
        made = [cls(twin, source) for twin, source in zip(many, sources, strict=True)]
        return made if isinstance(result, (list, tuple)) else made[0]


_SAME = ("clone", "detach", "alias", "_to_copy", "contiguous", "lift_fresh")
_RESHAPES = ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze")


def _sources(func: str, args: Any, plain: Any, results: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> list[Expression]:
    """The expression of each result of the operator ``func`` (``aten.name.overload``)."""
    name = func.split(".")[1]
    given = args[0]
    numbers = [number for number in plain[1:] if isinstance(number, int)]
    if name in ("stack", "cat"):
        dim = (numbers[0] if numbers else 0) % results[0].dim()
        return [[name, dim, *(one.source for one in given)]]
    inner, shape = given.source, given.shape
    if name in _SAME:
        return [inner]
    if name in _RESHAPES:
        return [["reshape", list(results[0].shape), inner]]
    if name in ("t", "transpose"):
        first, second = ([0, 1] if name == "t" else numbers)[:2]
        return [["transpose", first % len(shape), second % len(shape), inner]]
    if name == "permute":
        return [["permute", [dim % len(shape) for dim in plain[1]], inner]]
    if name in ("split", "split_with_sizes", "chunk"):
        dim = (plain[2] if len(plain) > 2 else 0) % len(shape)
        ends = [0]
        for result in results:
            ends.append(ends[-1] + result.shape[dim])
        return [["slice", dim, start, stop, inner] for start, stop in pairwise(ends)]
    if name == "slice" and (len(plain) < 5 or plain[4] == 1):
        dim, start = plain[1] % len(shape), plain[2] or 0
        start = start + shape[dim] if start < 0 else start
        return [["slice", dim, start, start + results[0].shape[dim], inner]]
    if name == "select":
        dim, index = plain[1] % len(shape), plain[2] % shape[plain[1]]
        return [["reshape", list(results[0].shape), ["slice", dim, index, index + 1, inner]]]
    raise _unknown(func)


def _unknown(what: str) -> CheckpointError:
    return CheckpointError(
        f"the files of this model are converted in a way that is not supported ({what}): load the folder with transformers once, "
        "save it with save_pretrained(..., save_original_format=False), and use that folder"
    )
