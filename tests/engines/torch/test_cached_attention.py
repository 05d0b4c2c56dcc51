"""Attention to a cache gives what attention to the whole text gives, in chunks, in slots, with groups and windows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from farflung.engines.torch.cached_attention import cached_attention

HEADS, DIMS, CONTEXT = 4, 8, 12


def inputs(tokens: int, groups: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, heads, tokens, DIMS, generator=draw) for heads in (HEADS, groups, groups))  # type: ignore[return-value]


def whole(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    """Causal attention without a cache, written plainly."""
    times = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
    places = torch.arange(query.shape[2])
    seen = places[None, :] <= places[:, None]
    if window:
        seen &= places[None, :] > places[:, None] - window
    scores = (query @ key.transpose(2, 3) * DIMS**-0.5).masked_fill(~seen, float("-inf"))
    return scores.softmax(dim=-1) @ value


@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("chunks", [(9,), (1,) * 9, (4, 1, 4), (2, 7)])
def test_a_text_in_chunks_is_the_whole_text(chunks: tuple[int, ...], groups: int, window: int) -> None:
    query, key, value = inputs(9, groups)
    cache, found, first = torch.full((2, 3, groups, CONTEXT, DIMS), float("nan")), [], 0
    for count in chunks:
        part = slice(first, first + count)
        places = torch.arange(first, first + count)[None], torch.full((count,), 1)
        found.append(cached_attention(query[:, :, part], key[:, :, part], value[:, :, part], cache, *places, DIMS**-0.5, window))
        first += count
    torch.testing.assert_close(torch.cat(found, dim=2), whole(query, key, value, window))
    assert torch.equal(cache[0, 1, :, :9], key[0])
    assert torch.equal(cache[1, 1, :, :9], value[0])
    assert cache[:, [0, 2]].isnan().all(), "other slots are not touched"


def test_a_row_holds_several_requests_and_padding() -> None:
    query, key, value = inputs(7, 2)
    cache = torch.zeros(2, 2, 2, CONTEXT, DIMS)
    positions, slots = torch.tensor([[0, 1, 2, 0, 1, 0, 0]]), torch.tensor([1, 1, 1, 0, 0, -1, -1])
    found = cached_attention(query, key, value, cache, positions, slots, DIMS**-0.5, 0)
    for part in (slice(0, 3), slice(3, 5)):
        torch.testing.assert_close(found[:, :, part], whole(query[:, :, part], key[:, :, part], value[:, :, part], 0))
    assert not found[:, :, 5:].any()
    assert not cache[:, 0, :, 2:].any()


@pytest.mark.parametrize(
    ("positions", "slots", "text"),
    [
        ([10, 11, 12], [0, 0, 0], "slot 0, position 12: the cache has 2 slots of 12 positions"),
        ([0, 1, 2], [2, 2, 2], "slot 2, position 2: the cache has 2 slots"),
        ([-1, 0, 1], [0, 0, 0], "slot 0, position 1"),
        ([0, 2, 3], [0, 0, 0], "the positions of slot 0 are not consecutive"),
    ],
)
def test_places_outside_the_cache_are_refused(positions: list[int], slots: list[int], text: str) -> None:
    query, key, value = inputs(3, 2)
    cache = torch.zeros(2, 2, 2, CONTEXT, DIMS)
    with pytest.raises(ValueError, match=text):
        cached_attention(query, key, value, cache, torch.tensor([positions]), torch.tensor(slots), 1.0, 0)
    assert not cache.any()


def test_shapes_that_a_kernel_would_trust_are_refused() -> None:
    query, key, value = inputs(3, 2)
    places = torch.tensor([[0, 1, 2]]), torch.tensor([0, 0, 0])
    good = torch.zeros(2, 2, 2, CONTEXT, DIMS)
    for cache in (good[0], good[:, :, :1], good[..., :4], good.double(), good[:1]):
        with pytest.raises(ValueError, match="do not fit each other"):
            cached_attention(query, key, value, cache, *places, 1.0, 0)
    with pytest.raises(ValueError, match="do not fit each other"):
        cached_attention(query, key, value, good, places[0].int(), places[1], 1.0, 0)
    for shape in ((1, 0), (2, 2)):  # no heads, and two texts: kernels divide by the number of heads
        few, caches = torch.zeros(*shape, 3, DIMS), torch.zeros(2, 2, shape[1], CONTEXT, DIMS)
        with pytest.raises(ValueError, match="do not fit each other"):
            cached_attention(query.to("meta"), *(one.to("meta") for one in (few, few, caches, *places)), 1.0, 0)
    meta = [one.to("meta") for one in (query, key, value, good, *places)]
    assert cached_attention(*meta, 1.0, 0).shape == query.shape
