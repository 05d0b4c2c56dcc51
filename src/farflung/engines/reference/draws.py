"""The random numbers of one call of an operator, in the order in which PyTorch fills memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from farflung.engines.base import Array, MicroBatch
from farflung.engines.host.random_bits import Stream
from farflung.graph.ir import Op
from farflung.ids import derive_seed

__all__ = ["Draw"]


class Draw:
    """Draws for ``op`` in the micro-batch ``key``; numbers have the bits of the declared element type."""

    def __init__(self, op: Op, seed: int, key: MicroBatch) -> None:
        assert op.rng is not None
        self._stream = Stream(derive_seed("op", seed, key.step, key.index, op.rng))
        self._dtype = op.outputs[0].dtype

    def kept(self, shape: tuple[int, ...], probability: float, like: Array) -> Array:
        """A mask that is true with ``probability``."""
        return _laid_out(lambda sizes: self._stream.kept(sizes, probability), shape, like)

    def uniform(self, shape: tuple[int, ...], like: Array | None = None) -> Array:
        """Numbers of [0, 1)."""
        return _laid_out(lambda sizes: self._stream.uniform(sizes, self._dtype), shape, like)

    def normal(self, shape: tuple[int, ...], like: Array | None = None) -> Array:
        """Normal numbers."""
        return _laid_out(self._stream.normal, shape, like)


def _laid_out(draw: Callable[[tuple[int, ...]], Array], shape: tuple[int, ...], like: Array | None) -> Array:
    """Numbers in the order of memory of ``like``, whose permutation PyTorch's results keep."""
    if like is None or like.shape != shape:
        return draw(shape)
    order = sorted(range(like.ndim), key=lambda axis: -like.strides[axis])
    return np.transpose(draw(tuple(shape[axis] for axis in order)), np.argsort(order))
