"""``farflung.cached_attention``: causal attention of new tokens to the key-value cache of their requests.

The tokens of several requests stand in one row. Each token has a slot of the cache and a position in it. The operator writes keys
and values at their places, then each request attends to its own slot up to its position. A token without a slot (-1) is padding.
The products are those of ``scaled_dot_product_attention`` on the tokens of one request, as a model with a cache of its own
computes them.

Unlike all other operators of a graph, this one changes a state: the cache. Serving graphs have no backward and are computed batch
by batch, so the order of the changes is that of the batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch

__all__ = ["cached_attention"]


def cached_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, *where: Any
) -> torch.Tensor:
    """Attend and return ``(1, heads, tokens, dims)``.

    Args:
        query: ``(1, heads, tokens, dims)``.
        key: ``(1, groups, tokens, dims)``; ``heads`` is a multiple of ``groups``.
        value: as ``key``.
        cache: ``(2, slots, groups, context, dims)``, keys and values; it is written to.
        where: positions, slots, scale and window. Positions are ``(1, tokens)``: consecutive tokens of one slot have consecutive
            positions. Slots are ``(tokens,)``: -1 for padding. The scale is a factor of the products. The window says how many
            positions a token sees, its own included (0: all).

    Raises:
        ValueError: the shapes do not fit, or a slot or position lies outside the cache.
    """
    positions, slots, scale, window = where
    _check_shapes(query, key, value, cache, (positions, slots))
    found = torch.zeros_like(query, memory_format=torch.contiguous_format)
    if query.device.type == "meta":
        return found
    places = list(zip(slots.tolist(), positions[0].tolist(), strict=True))
    for slot, first, start, stop in _pieces(places, cache.shape[1], cache.shape[3]):
        end = first + stop - start
        cache[0, slot, :, first:end] = key[0, :, start:stop]
        cache[1, slot, :, first:end] = value[0, :, start:stop]
        begin = max(0, first + 1 - window) if window else 0
        begins = first == 0 and not (window and window < end)  # then the kernel needs no mask
        found[:, :, start:stop] = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, start:stop],
            cache[0, slot : slot + 1, :, begin:end],
            cache[1, slot : slot + 1, :, begin:end],
            attn_mask=None if begins or end - first == 1 else _mask((first, end), begin, window, query.device),
            is_causal=begins and end > 1,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    return found


def _mask(rows: tuple[int, int], begin: int, window: int, device: torch.device) -> torch.Tensor:
    """Which of the positions from ``begin`` on the tokens at the positions ``rows`` see: ``(tokens, positions)``."""
    own = torch.arange(*rows, device=device)[:, None]
    seen = torch.arange(begin, rows[1], device=device)[None, :]
    return (seen <= own) & (seen > own - window) if window else seen <= own


def _pieces(places: Sequence[tuple[int, int]], slots: int, context: int) -> Iterator[tuple[int, int, int, int]]:
    """The runs of tokens of one slot: slot, first position, and where they begin and end in the row."""
    start = 0
    for slot, run in groupby(places, key=lambda place: place[0]):
        at = [position for _, position in run]
        stop = start + len(at)
        if slot >= 0:
            if slot >= slots or at[0] < 0 or at[-1] >= context:
                raise ValueError(f"slot {slot}, position {at[-1]}: the cache has {slots} slots of {context} positions")
            if at != list(range(at[0], at[0] + len(at))):
                raise ValueError(f"the positions of slot {slot} are not consecutive")
            yield slot, at[0], start, stop
        start = stop


def _check_shapes(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, places: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """The kernels trust these.

    Raises:
        ValueError: a shape or element type does not fit.
    """
    positions, slots = places
    fits = query.dim() == key.dim() == 4 and cache.dim() == 5 and query.shape[0] == 1 and query.numel() > 0
    fits = fits and key.shape == value.shape and query.shape[2:] == key.shape[2:]
    fits = fits and key.shape[0] == 1 and key.shape[1] > 0 and query.shape[1] % key.shape[1] == 0
    fits = fits and cache.shape[0] == 2 and cache.shape[2] == key.shape[1] and cache.shape[4] == key.shape[3]
    fits = fits and query.dtype == key.dtype == value.dtype == cache.dtype and query.is_floating_point()
    tokens = query.shape[2] if query.dim() == 4 else 0
    fits = fits and tuple(positions.shape) == (1, tokens) and tuple(slots.shape) == (tokens,)
    fits = fits and positions.dtype == slots.dtype == torch.int64
    if not fits:
        shown = ", ".join(str(list(one.shape)) for one in (query, key, value, cache, positions, slots))
        raise ValueError(f"query, key, value, cache, positions and slots do not fit each other: {shown}")
