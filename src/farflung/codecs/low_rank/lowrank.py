"""PowerSGD: a matrix as the product of two thin factors (T. Vogels et al., "PowerSGD", 2019, Algorithm 1).

One step of power iteration: P = orthonormal basis of M Q, then Q = M^T P; the receiver computes P Q^T. Started from the last Q
of the same value (warm start) it follows the leading singular vectors from step to step; started anew it uses a random Q.
Orthonormal columns come from Gram-Schmidt, twice, in the order of the columns. M has the first dims as rows and the others as
columns, split where the factors are smallest: activations of 4 x 32 x 32 are 128 x 32. One dim is rows unless another split takes
a quarter less, so weights of a convolution stay output by output. With a single dim the elements in C order fill a nearly square
matrix, followed by zeros. Cost: 4 r multiplications for each element.

``ratio`` bounds the bytes of each matrix instead of its rank: the largest rank, up to ``rank``, whose factors are within that
share of it; where not even 1 is, 1 or a bit for each element, whichever takes fewer bytes. One rank of 3 for all, in 4 bits,
sends a matrix of 8 x 72 at a 19th and one of 4096 x 4096 at a 5000th. Replicas share an exchange's bytes out (``apportion``).

``values = "int8"`` or ``"int4"`` sends the factors block-quantized, four to eight times the rank for the same bytes, and what has
too few elements for factors in 8 or 2 bits: with error feedback (``memory``) more and coarser directions lose less than few exact
ones (docs/benchmarks.md, ``loss-study``).

The codec keeps no state: it starts from the seed. The members of ``memory`` start it warm. Replicas that reduce before they
orthogonalize (the paper's lines 5 and 7) use ``left_factor``, ``orthonormal`` and ``right_factor`` themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod
from typing import ClassVar

import numpy as np

from farflung.codecs.base import FLOATING, Array, Codec, Payload, as_section, flatten
from farflung.codecs.dense import HEAD_BYTES, Identity, finite_max
from farflung.codecs.keys import check_seed, words
from farflung.codecs.quantization.levels import Levels, quantize
from farflung.codecs.quantization.quantized import BlockQuantized, read_quantized, scale_dtype
from farflung.codecs.sparse.topk import check_ratio
from farflung.errors import CodecError, InputError
from farflung.wire.arrays import DTYPES

__all__ = ["LowRank", "left_factor", "matrix_shape", "orthonormal", "right_factor", "start_factor"]

_MAX_RANK = 1024
_EXTRA_HEAD = 48
#: Bits of a factor's elements, and of what has no factors.
_BITS = {"float32": (0, 0), "int8": (8, 8), "int4": (4, 2)}
_BLOCK = 256
#: What has too few elements for factors within a share of the bytes.
_BIT = BlockQuantized(bits=1, block=1024)
_TINY = 1e-30
#: A column of which less than this is left, beside those before, is rounding.
_DEPENDENT = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """Rank ``rank`` from one step of power iteration, started from ``seed``; ``values``: how the factors travel.

    ``ratio``: the largest rank, up to ``rank``, whose factors take at most 1 / ``ratio`` of the bytes (1: always ``rank``)."""

    rank: int = 4
    values: str = "float32"
    seed: int = 0
    ratio: float = 1.0
    name: ClassVar[str] = "lowrank"
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if type(self.rank) is not int or not 1 <= self.rank <= _MAX_RANK:
            raise InputError(f"codec 'lowrank' needs a rank from 1 to {_MAX_RANK}, got {self.rank!r}")
        if self.values not in _BITS:
            raise InputError(f"codec 'lowrank' needs values as {', '.join(_BITS)}, got {self.values!r}")
        check_seed("lowrank", self.seed)
        check_ratio("lowrank", self.ratio)

    def encode(self, array: Array) -> Payload:
        """See ``Codec``; ``identity`` where that is smaller, or an element is neither floating-point nor finite."""
        return self.encode_from(array, None)[0]

    def encode_from(self, array: Array, start: Array | None) -> tuple[Payload, Array | None]:
        """(payload, right factor of shape (columns, rank)), started from ``start``, a right factor of before (None: from the
        seed). No factor comes back where the array travels as it is."""
        dtype, flat = flatten(array)
        rows, columns = matrix_shape(array.shape)
        if dtype not in FLOATING or not self._pays(rows, columns, flat.size, flat.itemsize) or not _is_calm(flat, dtype):
            return self.rest.encode(array), None
        matrix = np.zeros((rows, columns), DTYPES[scale_dtype(dtype)])
        matrix.reshape(-1)[: flat.size] = flat
        unit = np.abs(matrix).max() or 1.0
        matrix /= unit
        rank = self.rank_of(rows, columns, flat.itemsize)
        if start is None or start.shape != (columns, rank) or not np.isfinite(start).all():
            start = start_factor(columns, rank, self.seed)
        left = orthonormal(left_factor(matrix, start.astype(matrix.dtype)))
        right = right_factor(matrix, left)
        even = matrix.dtype.type(2.0 ** (rows.bit_length() // 2 + 1))  # the right factor may not leave the range
        sent = left * even, (right / even) * unit
        fields = {"rank": rank, "rows": rows, "columns": columns}
        sections = tuple(as_section(factor.reshape(-1)) for factor in sent)
        if bits := _BITS[self.values][0]:
            fields |= {"bits": bits, "block": _BLOCK}
            sections = _quantized(sent, bits)
        return Payload(codec=self.name, dtype=dtype, shape=array.shape, fields=fields, sections=sections), right

    def decode(self, payload: Payload) -> Array:
        """See ``Codec``."""
        if payload.codec in (Identity.name, BlockQuantized.name):
            return (Identity() if payload.codec == Identity.name else BlockQuantized()).decode(payload)
        if payload.codec != self.name:
            raise CodecError(f"lowrank can't decode a payload of {payload.codec!r:.40}; take the codec that the payload names")
        if payload.dtype not in FLOATING:
            raise CodecError(f"bad lowrank payload: {payload.dtype} elements have no factors")
        numel, kind = payload.numel, scale_dtype(payload.dtype)
        rank = payload.integer("rank", 1, _MAX_RANK)
        rows, columns = payload.integer("rows", 1, max(1, numel)), payload.integer("columns", 1, max(1, numel))
        if not 0 <= rows * columns - numel < rows + columns:
            raise CodecError(f"bad lowrank payload: {rows} x {columns} doesn't hold {numel} elements")
        if "bits" in payload.fields:
            codes, scales, further_codes, further_scales = payload.sections_of(4)
            left = read_quantized(payload, codes, scales, rows * rank).reshape(rank, rows).T
            right = read_quantized(payload, further_codes, further_scales, columns * rank).reshape(rank, columns).T
        else:
            first, second = payload.sections_of(2)
            left = payload.elements(first, kind, rows * rank).reshape(rows, rank)
            right = payload.elements(second, kind, columns * rank).reshape(columns, rank)
        top = finite_max(payload.dtype)
        with np.errstate(all="ignore"):
            flat = (left @ right.T).reshape(-1)[:numel]
            return flat.clip(-top, top).astype(DTYPES[payload.dtype], copy=False).reshape(payload.shape)

    def wire_bytes(self, numel: int, itemsize: int) -> float:
        """See ``Codec``; of one dim. What has several takes more: ask ``shaped_bytes``."""
        return self.shaped_bytes((numel,), itemsize)

    def shaped_bytes(self, shape: tuple[int, ...], itemsize: int) -> float:
        """See ``codecs.base.ByShape``."""
        sections, factors = self._foretold(shape, itemsize)
        return HEAD_BYTES + sections + (_EXTRA_HEAD if factors else 0)

    def section_bytes(self, shape: tuple[int, ...], itemsize: int) -> float:
        """As ``shaped_bytes``, without the payload's head."""
        return self._foretold(shape, itemsize)[0]

    def error_bound(self, shape: tuple[int, ...]) -> float:
        """See ``Codec``: a projection, so never more than the array itself."""
        return 1.0

    @property
    def rest(self) -> Codec:
        """How travels what has too few elements for factors."""
        if self.ratio > 1.0:
            return _BIT
        bits = _BITS[self.values][1]
        return BlockQuantized(bits=bits) if bits else Identity()

    def rank_of(self, rows: int, columns: int, itemsize: int) -> int:
        """The rank at which a matrix of elements of ``itemsize`` bytes travels; 0: without factors."""
        if self.ratio == 1.0:
            return self.rank
        direction, dense = self.factor_bytes(rows, columns, itemsize, 1), rows * columns * itemsize
        if direction + _EXTRA_HEAD >= dense:
            return 0
        return min(self.rank, max(int(dense / self.ratio / direction), self.least_rank(rows, columns, itemsize)))

    def least_rank(self, rows: int, columns: int, itemsize: int) -> int:
        """1 where that takes fewer bytes than a bit for each element, else 0."""
        one, none = (self.factor_bytes(rows, columns, itemsize, rank) for rank in (1, 0))
        return int(one < none and one + _EXTRA_HEAD < rows * columns * itemsize)

    def factor_bytes(self, rows: int, columns: int, itemsize: int, rank: int) -> float:
        """Bytes of a matrix of elements of ``itemsize`` bytes at ``rank``: of both factors, or (0) as what has none."""
        if not rank:
            return self.rest.wire_bytes(rows * columns, itemsize) - HEAD_BYTES
        bits, scale = _BITS[self.values][0], max(4, itemsize)
        numel = rank * (rows + columns)
        return numel * bits / 8 + (numel // _BLOCK + 2) * scale if bits else float(numel * scale)

    def _foretold(self, shape: tuple[int, ...], itemsize: int) -> tuple[float, bool]:
        """Bytes of all sections, and whether they are factors."""
        (rows, columns), numel = matrix_shape(shape), prod(shape)
        if not self._pays(rows, columns, numel, itemsize):
            return self.rest.wire_bytes(numel, itemsize) - HEAD_BYTES, False
        return self.factor_bytes(rows, columns, itemsize, self.rank_of(rows, columns, itemsize)), True

    def _pays(self, rows: int, columns: int, numel: int, itemsize: int) -> bool:
        rank = self.rank_of(rows, columns, itemsize)
        factors = self.factor_bytes(rows, columns, itemsize, rank) + _EXTRA_HEAD
        return 0 < rank <= min(rows, columns) and factors < numel * itemsize


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of the matrix that an array of ``shape`` is taken for; it holds at least its elements.

    Factors of one rank take rows + columns; the split with the least of them, or the first if none takes a quarter less."""
    numel = prod(shape)
    if len(shape) > 1 and numel:
        first, *others = ((prod(shape[:cut]), prod(shape[cut:])) for cut in range(1, len(shape)))
        best = min(others, key=sum, default=first)
        return best if 4 * sum(best) <= 3 * sum(first) else first
    rows = max(1, isqrt(numel))
    return rows, max(1, -(-numel // rows))


def start_factor(columns: int, rank: int, seed: int) -> Array:
    """A random right factor, (columns, rank), float32: -1 or 1 by the lowest bits of the seed's words."""
    bits = (words(seed, 0, columns * rank) & np.uint64(1)).astype(np.float32)
    factor: Array = (2 * bits - 1).reshape(columns, rank)
    return factor


def left_factor(matrix: Array, right: Array) -> Array:
    """M Q, of shape (rows, rank)."""
    product: Array = matrix @ right
    return product


def right_factor(matrix: Array, left: Array) -> Array:
    """M^T P, of shape (columns, rank)."""
    product: Array = np.ascontiguousarray(matrix.T @ left)
    return product


def orthonormal(factor: Array) -> Array:
    """An orthonormal basis of the columns of ``factor``; a column that depends on those before becomes zero."""
    basis = factor.astype(np.float64)
    for column in range(basis.shape[1]):
        vector, before = basis[:, column], basis[:, :column]
        length = float(np.linalg.norm(vector))
        for _ in range(2):
            vector -= before @ (before.T @ vector)
        rest = float(np.linalg.norm(vector))
        vector *= 1.0 / rest if rest > _DEPENDENT * length + _TINY else 0.0
    return basis.astype(factor.dtype)


def _quantized(factors: tuple[Array, Array], bits: int) -> tuple[memoryview, ...]:
    """Codes and scales of both factors, direction by direction."""
    sections: list[memoryview] = []
    for factor in factors:
        flat = np.ascontiguousarray(factor.T).reshape(-1)
        codes, scales = quantize(flat, Levels(bits=bits, block=_BLOCK), flat.dtype)
        sections += [as_section(codes), as_section(scales)]
    return tuple(sections)


def _is_calm(flat: Array, dtype: str) -> bool:
    """Whether all elements are finite (and there are some), so that factors can be computed."""
    with np.errstate(all="ignore"):
        return bool(flat.size) and bool(np.isfinite(flat.max()) and np.isfinite(flat.min()))
