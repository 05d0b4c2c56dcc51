"""The program of a rank that computes a part of each micro-batch: where ranks add, and what they draw.

Source: Megatron-LM (Shoeybi et al. 2019), section 3: the operators f (a value enters a divided part, and its gradients are added)
and g (partial results are added). What differs: they stand around the operators of a captured graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from farflung.engines.torch.accelerators import default_generator
from farflung.engines.torch.draws import KeyHolder
from farflung.engines.torch.keys import seeded
from farflung.engines.torch.program import Call, Program, kernel
from farflung.engines.torch.ranks.group import RankGroup, SumOfRanks
from farflung.engines.torch.ranks.tensor_states import part_of
from farflung.engines.torch.ranks.vocabulary import RankWords, divided_embedding, divided_loss
from farflung.graph.ir import StateRef, ValueRef
from farflung.graph.tensor_parallel import Division, Split
from farflung.graph.tensor_parallel.operator_rules import PRODUCTS
from farflung.graph.tensor_parallel.vocabulary_rules import EMBEDDING, LOSS

__all__ = ["divide_program"]

_ATTENTION = "aten.scaled_dot_product_attention.default"


class _Enter(torch.autograd.Function):
    """A whole value enters operators of which each rank computes a part: its gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: RankGroup) -> torch.Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.group.add(gradient), None


def divide_program(program: Program, division: Division, device: torch.device, group: RankGroup) -> None:
    """Put the sums of ``division`` into ``program``, which was compiled from its local graph."""
    _Rewriting(program, division, device, group).run()


class _Rewriting:
    def __init__(self, program: Program, division: Division, device: torch.device, group: RankGroup) -> None:
        self._program, self._division, self._device, self._group = program, division, device, group
        #: The slot of a value -> that of the same value inside.
        self._inside: dict[int, int] = {}
        self._calls: list[Call] = []

    def run(self) -> None:
        """Rewrite all calls."""
        for call in self._program.calls:
            name = call.op.name
            inside = self._entered(call, self._division.entered.get(name, ()))
            inside = self._gathered(inside, self._division.gathered.get(name, ()))
            self._calls.append(replace(inside, function=self._function(call)))
        last = {slot: number for number, call in enumerate(self._calls) for _, slot in call.fills}
        for slot in self._inside.values():
            call = self._calls[last[slot]]
            self._calls[last[slot]] = replace(call, free=(*call.free, slot))
        self._program.use_calls(self._calls)

    def _entered(self, call: Call, refs: tuple[ValueRef | StateRef, ...]) -> Call:
        """``call``, reading what ``refs`` name behind an ``_Enter``."""
        fills = list(call.fills)
        for number, (place, slot) in enumerate(fills):
            if call.op.args[place] in refs:
                if slot not in self._inside:
                    self._insert(call, slot, self._enter)
                fills[number] = place, self._inside[slot]
        return replace(call, fills=tuple(fills))

    def _enter(self, value: torch.Tensor) -> Any:
        return _Enter.apply(value, self._group)  # type: ignore[no-untyped-call]

    def _gathered(self, call: Call, names: tuple[str, ...]) -> Call:
        """``call``, reading the whole of the states ``names``, of which each rank has a part."""
        fills = list(call.fills)
        for number, (place, slot) in enumerate(fills):
            arg = call.op.args[place]
            if isinstance(arg, StateRef) and arg.name in names:
                self._insert(call, slot, self._whole(self._division.states[arg.name]))
                fills[number] = place, self._inside[slot]
        return replace(call, fills=tuple(fills))

    def _whole(self, split: Split) -> Callable[[torch.Tensor], torch.Tensor]:
        def whole(part: torch.Tensor) -> torch.Tensor:
            found, begin = [], 0
            parts = self._group.gather(part.detach())
            for section in split.sections:
                size = section // self._group.size
                found += [one.narrow(split.dim, begin, size) for one in parts]
                begin += size
            return torch.cat(found, split.dim)

        return whole

    def _insert(self, call: Call, slot: int, function: Callable[[torch.Tensor], Any]) -> None:
        """Insert a call of ``function`` with the value of ``slot`` before ``call``."""
        inside = self._inside[slot] = self._program.new_slot()
        self._calls.append(
            replace(
                call,
                function=function,
                template=[None],
                fills=((0, slot),),
                nested=(),
                kwargs={},
                outputs=(inside,),
                free=(),
            )
        )

    def _function(self, call: Call) -> Callable[..., Any]:
        name, target = call.op.name, call.op.target
        if name in self._division.summed:
            return self._summed(call)
        split = self._division.values.get(ValueRef(name))
        if call.op.rng is None or split is None:
            return call.function
        draw = _Draw(call.op.rng, split, self._device, self._group, self._program.key)
        return _attention(draw, call.function) if target == _ATTENTION else _dropout(draw)

    def _summed(self, call: Call) -> Callable[..., Any]:
        first = call.op.args[0]
        if call.op.target == EMBEDDING and isinstance(first, StateRef):
            return divided_embedding(RankWords.of(self._division.states[first.name], self._group), self._group)
        if call.op.target == LOSS and isinstance(first, ValueRef):
            return divided_loss(RankWords.of(self._division.values[first], self._group), self._group)
        return self._by_rows(call)

    def _by_rows(self, call: Call) -> Callable[..., Any]:
        """A product whose weight is divided by rows. The bias is added once, after the sum."""
        where, function = PRODUCTS[call.op.target], call.function
        if call.op.target == "aten.addmm.default":
            function = kernel("aten.mm.default", [], {}, self._device)

        def product(*args: torch.Tensor | None) -> torch.Tensor:
            partial = function(*(arg for place, arg in enumerate(args) if place != where.bias))
            found: torch.Tensor = SumOfRanks.apply(partial, self._group)  # type: ignore[no-untyped-call]
            bias = args[where.bias] if 0 <= where.bias < len(args) else None
            return found if bias is None else found + bias.to(found.dtype)

        return product


class _Draw:
    """The random numbers of one operator: all ranks draw those of the whole value, and each takes its part."""

    def __init__(self, rng: int, split: Split, device: torch.device, group: RankGroup, key: KeyHolder) -> None:
        self._rng, self._split, self._device, self._group, self._key = rng, split, device, group, key

    def keeps(self, shape: Sequence[int], p: float, dtype: torch.dtype, order: Sequence[int] | None = None) -> torch.Tensor:
        """Ones where dropout keeps the elements of this rank's ``shape``, and zeros elsewhere.

        ``order``: the dimensions as the whole tensor has them in memory, because numbers are drawn in that order.
        """
        whole, order = list(shape), range(len(shape)) if order is None else order
        whole[self._split.dim] *= self._group.size
        memory = torch.empty([whole[dim] for dim in order], dtype=dtype, device=self._device)
        with seeded(default_generator(self._device), self._key.of(self._rng)):
            memory.bernoulli_(1 - p)
        places = {dim: place for place, dim in enumerate(order)}
        return part_of(memory.permute([places[dim] for dim in range(len(whole))]), self._split, self._group)


def _dropout(draw: _Draw) -> Callable[..., torch.Tensor]:
    def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not train or p == 0:
            return x
        if p == 1:
            return x * torch.zeros((), dtype=x.dtype, device=x.device)
        order = sorted(range(x.ndim), key=lambda dim: -x.stride()[dim])
        return x * draw.keeps(x.shape, p, x.dtype, order).div_(1 - p)

    return dropout


def _attention(draw: _Draw, plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Attention with dropout, by the algorithm that takes a mask. What differs: it keeps all weights of the attention."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> torch.Tensor:
        if dropout_p == 0:
            return plain(query, key, value, attn_mask, dropout_p, is_causal, **options)
        if torch.is_autocast_enabled(query.device.type):
            narrow = torch.get_autocast_dtype(query.device.type)
            query, key, value = query.to(narrow), key.to(narrow), value.to(narrow)
        keeps = draw.keeps([*query.shape[:-1], key.shape[-2]], dropout_p, query.dtype).bool()
        found: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal, keeps, **options
        )[0]
        return found

    return attention
