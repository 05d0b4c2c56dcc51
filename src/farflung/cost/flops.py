"""Floating-point operations per operator, from shapes alone.

Matrix products, convolutions and attention follow the usual count (a multiply-add is two operations; attention counts the
full square also where a causal mask allows half). ``torch.utils.flop_counter`` gives the same numbers, except that it counts
nothing for attention on CPUs. Everything else counts a small number per element, where that counter counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod, sqrt

from farflung.cost.operands import Operands
from farflung.graph.ir import StateRef, ValueRef, iter_refs
from farflung.graph.opset import OpClass, info

__all__ = ["backward_flops", "forward_flops", "weight_flops"]

#: Backward of fused attention: five products where forward has two (it forms the scores again).
_ATTENTION_BACKWARD = 2.5
_NORM_PER_ELEMENT = 8.0
_SOFTMAX_PER_ELEMENT = 5.0
_SOFTMAX_LIKE = ("softmax.", "_softmax.", "log_softmax.", "_log_softmax.", "logsumexp.", "cross_entropy_loss.")


_FOURIER = (
    *("fft", "fft2", "fftn", "hfft", "ifft", "ifft2", "ifftn"),
    *("ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftn"),
)


def forward_flops(operands: Operands) -> float:
    """Operations of one forward."""
    rule = _RULES.get(operands.op.target)
    if rule is not None:
        return float(rule(operands))
    return _by_class(operands)


def backward_flops(operands: Operands, forward: float) -> float:
    """Operations of one backward: one forward's worth per operand of a product that needs a gradient, else one in all."""
    if not operands.backward:
        return 0.0
    kind = info(operands.op.target).op_class
    if kind is OpClass.ATTENTION:
        return _ATTENTION_BACKWARD * forward
    if kind is OpClass.RECURRENT:
        return 2.0 * forward
    if kind in (OpClass.GEMM, OpClass.CONVOLUTION):
        factors = _FACTORS.get(operands.op.target, (0, 1))
        return forward * sum(operands.needs(operands.ref(index)) for index in factors)
    return forward


def weight_flops(operands: Operands, forward: float) -> float:
    """Operations of ``backward_flops`` that make the gradients of parameters: nothing upstream waits for them."""
    if not operands.backward or info(operands.op.target).op_class not in (OpClass.GEMM, OpClass.CONVOLUTION):
        return 0.0
    factors = [operands.ref(index) for index in _FACTORS.get(operands.op.target, (0, 1))]
    return forward * sum(isinstance(ref, StateRef) and operands.needs(ref) for ref in factors)


def _by_class(operands: Operands) -> float:
    kind = info(operands.op.target).op_class
    numel = float(sum(spec.numel for spec in operands.op.outputs))
    if kind in (OpClass.INPUT, OpClass.VIEW):
        return 0.0
    if kind in (OpClass.REDUCTION, OpClass.LOSS):
        largest = float(max((operands.spec_of(ref).numel for ref in operands.refs()), default=0))
        short = operands.op.target.removeprefix("aten.")
        return largest * (_SOFTMAX_PER_ELEMENT if short.startswith(_SOFTMAX_LIKE) else 1.0)
    if kind is OpClass.NORM:
        return _NORM_PER_ELEMENT * operands.out.numel
    if kind is OpClass.POOL:
        kernel = operands.arg(1, "kernel_size")
        if operands.op.target.startswith("aten.adaptive") or not isinstance(kernel, tuple):
            return float(max((operands.spec_of(ref).numel for ref in operands.refs()), default=0))
        return operands.out.numel * float(prod(size for size in kernel if isinstance(size, int)))
    if kind is OpClass.SORT:
        rows = float(max((operands.spec_of(ref).numel for ref in operands.refs()), default=0))
        return rows * max(1.0, log2(max(rows, 2.0)))
    if kind is OpClass.GEMM:
        return _contraction(operands)
    return numel


def _contraction(operands: Operands) -> float:
    """Any product of two tensors without batch: the contracted extent is sqrt(|a| |b| / |out|)."""
    sizes = [operands.spec_of(ref).numel for ref in operands.refs()][:2]
    if len(sizes) < 2 or operands.out.numel == 0:
        return float(operands.out.numel)
    return 2.0 * operands.out.numel * sqrt(sizes[0] * sizes[1] / operands.out.numel)


def _product(index: int) -> Callable[[Operands], float]:
    """A product whose contracted extent is the last one of argument ``index``."""

    def rule(operands: Operands) -> float:
        shape = operands.shape(index)
        return 2.0 * operands.out.numel * (shape[-1] if shape else 1)

    return rule


def _addbmm(operands: Operands) -> float:
    batch, rows, inner = operands.shape(1)
    return 2.0 * batch * rows * inner * operands.shape(2)[-1]


def _bilinear(operands: Operands) -> float:
    return 2.0 * operands.out.numel * prod(operands.shape(2)[1:])


def _convolution(operands: Operands) -> float:
    return 2.0 * operands.out.numel * prod(operands.shape(1)[1:])


def _transposed(operands: Operands) -> float:
    return 2.0 * prod(operands.shape(0)) * prod(operands.shape(1)[1:])


def _attention(operands: Operands) -> float:
    query, key, value = operands.shape(0), operands.shape(1), operands.shape(2)
    return 2.0 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _cached_attention(operands: Operands) -> float:
    """As if each query attended to the whole of its slot of the cache."""
    query, cache = operands.shape(0), operands.shape(3)
    return 4.0 * prod(query) * cache[-2]


def _einsum(operands: Operands) -> float:
    equation = operands.arg(0)
    if not isinstance(equation, str) or "..." in equation:
        return _contraction(operands)
    terms = equation.replace(" ", "").split("->")[0].split(",")
    extent: dict[str, int] = {}
    for term, ref in zip(terms, operands.refs(), strict=False):
        extent |= dict(zip(term, operands.spec_of(ref).shape, strict=False))
    return 2.0 * prod(extent.values())


def _recurrent(operands: Operands) -> float:
    """Each matrix of weights meets each step of each sample once."""
    steps = prod(operands.shape(0)[:2])
    matrices = (operands.spec_of(ref) for ref in iter_refs(operands.arg(2)) if isinstance(ref, (StateRef, ValueRef)))
    return 2.0 * steps * sum(spec.numel for spec in matrices if len(spec.shape) == 2)


def _fourier(operands: Operands) -> float:
    """The usual count of a fast transform, 5 n log2 n, over all dimensions that it may cover."""
    numel = max(operands.out.numel, prod(operands.shape(0)))
    return 5.0 * numel * max(1.0, log2(max(numel, 2)))


_RULES: dict[str, Callable[[Operands], float]] = {
    "aten.addbmm.default": _addbmm,
    "aten.addmm.default": _product(1),
    "aten.addmv.default": _product(1),
    "aten.baddbmm.default": _product(1),
    "aten.bilinear.default": _bilinear,
    "aten.bmm.default": _product(0),
    "aten.dot.default": _product(0),
    "aten.einsum.default": _einsum,
    "aten.kron.default": lambda operands: operands.out.numel,
    "aten.linalg_solve_triangular.default": lambda operands: operands.out.numel * operands.shape(0)[-1],
    "aten.linear.default": _product(0),
    "aten.matmul.default": _product(0),
    "aten.mm.default": _product(0),
    "aten.mv.default": _product(0),
    "aten.vdot.default": _product(0),
    "farflung.cached_attention": _cached_attention,
    "farflung.grouped_linear": _product(0),
    "farflung.grouped_mm": _product(0),
    **{f"aten.{name}.input": _recurrent for name in ("gru", "lstm", "rnn_relu", "rnn_tanh")},
    **{f"aten.fft_{name}.default": _fourier for name in _FOURIER},
    "aten.outer.default": lambda operands: operands.out.numel,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.conv_transpose1d.default": _transposed,
    "aten.conv_transpose2d.input": _transposed,
    **{f"aten.conv{n}d.{overload}": _convolution for n in (1, 2, 3) for overload in ("default", "padding")},
}

#: Where the two factors of a product stand, if not at 0 and 1.
_FACTORS = {
    "aten.addbmm.default": (1, 2),
    "aten.addmm.default": (1, 2),
    "aten.addmv.default": (1, 2),
    "aten.baddbmm.default": (1, 2),
    "aten.bilinear.default": (0, 1, 2),
}
