"""What autograd keeps of each operator between forward and backward.

Rules follow torch's derivative formulas: a product keeps each factor whose partner needs a gradient, activations keep their
input or their result, views and sums keep nothing. A rule returns references (shared memory is counted once by the caller)
and a number of bytes that belong to the operator alone. Unknown differentiable operators count their tensors and results,
which is an upper bound for all of torch's formulas of one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from farflung.cost.operands import Operands, Ref
from farflung.graph.ir import StateRef, ValueRef
from farflung.graph.opset import OpClass, info

__all__ = ["Kept", "is_flash", "saved_for_backward"]

#: (references that are kept, bytes that the operator makes for itself)
Kept = tuple[tuple[Ref, ...], float]

_RESULT = ("exp.", "exp2.", "expm1.", "reciprocal.", "relu.", "rsqrt.", "sigmoid.", "softmax.", "_softmax.", "sqrt.", "tanh.")
_RESULT_TOO = ("log_softmax.", "_log_softmax.", "tan.")
_INPUT = (
    "abs.", "celu.", "clamp.", "clamp_max.", "clamp_min.", "cos.", "cosh.", "elu.", "erf.", "gelu.", "glu.", "hardsigmoid.",
    "hardswish.", "hardtanh.", "leaky_relu.", "log.", "log10.", "log1p.", "log2.", "mish.", "pow.Tensor_Scalar", "relu6.",
    "selu.", "silu.", "sin.", "sinh.", "softplus.", "softshrink.", "square.", "threshold.", "tril.", "triu.", "avg_pool",
)  # fmt: skip
_NOTHING = (
    "add.", "sub.", "rsub.", "neg.", "sum.", "mean.", "cumsum.", "cat.", "stack.", "pad.", "constant_pad", "flip.", "roll.",
    "repeat.", "to.", "_to_copy.", "type_as.", "mul.Scalar", "div.Scalar", "round.", "floor.", "ceil.", "trunc.", "sign.",
    "fft_", "tile.", "adaptive_avg_pool", "upsample_", "reflection_pad", "replication_pad", "col2im.", "im2col.",
)  # fmt: skip
_INDEXED = (
    "embedding.", "index.", "gather.", "index_select.", "scatter.", "scatter_add.", "index_add.", "index_copy.", "index_put.",
    "take_along_dim.", "masked_fill.", "where.", "masked_scatter.", "index_fill.",
)  # fmt: skip


def saved_for_backward(operands: Operands, device_kind: str) -> Kept:
    """What stays in memory from the operator's forward to its backward on a device of that kind (``cpu``, ``cuda``, ...)."""
    if not operands.backward:
        return (), 0.0
    short = operands.op.target.removeprefix("aten.")
    known = info(operands.op.target)
    if known.op_class in (OpClass.GEMM, OpClass.CONVOLUTION):
        return _product(operands)
    if known.op_class is OpClass.ATTENTION:
        return _attention(operands, device_kind)
    if "dropout" in short or short.startswith("rrelu."):
        return _dropout(operands, device_kind)
    rule = _RULES.get(short.split(".")[0])
    if rule is not None:
        return rule(operands)
    out = ValueRef(operands.op.name)
    if known.view or known.op_class is OpClass.VIEW or short.startswith(_NOTHING):
        return (), 0.0
    if short.startswith(_RESULT) or short.startswith(_RESULT_TOO):
        return (out,), 0.0
    if short.startswith(_INPUT):
        return operands.refs()[:1], 0.0
    if short.startswith(_INDEXED):
        return tuple(ref for ref in operands.refs() if not operands.spec_of(ref).floating), 0.0
    results = tuple(ValueRef(operands.op.name, i) for i in range(len(operands.op.outputs)))
    return (*operands.refs(), *results), 0.0


def _product(operands: Operands) -> Kept:
    """Each factor whose partner needs a gradient; of a triangular solve the matrix and the result."""
    if operands.op.target == "aten.linalg_solve_triangular.default":
        return (*operands.refs()[:1], ValueRef(operands.op.name)), 0.0
    skip = 1 if operands.op.target.split(".")[1] in ("addmm", "addbmm", "addmv", "baddbmm") else 0
    factors = [ref for ref in operands.refs() if not _is_bias(operands, ref)][skip:]
    return tuple(ref for ref in factors if any(operands.needs(other) for other in factors if other is not ref)), 0.0


def _is_bias(operands: Operands, ref: Ref) -> bool:
    spots = {"linear": 2, "conv1d": 2, "conv2d": 2, "conv3d": 2, "conv_transpose1d": 2, "conv_transpose2d": 2, "bilinear": 3}
    spot = spots.get(operands.op.target.split(".")[1])
    return spot is not None and operands.ref(spot, "bias") is ref


def is_flash(operands: Operands, device_kind: str) -> bool:
    """Whether attention runs in a fused kernel that keeps no probabilities."""
    dropout = operands.number(4, "dropout_p", 0.0) > 0
    fused = device_kind == "cuda" or (device_kind == "cpu" and not dropout)  # of other kinds nothing is promised
    return fused and len(operands.shape(0)) == 4


def _attention(operands: Operands, device_kind: str) -> Kept:
    query, key, value = operands.ref(0, "query"), operands.ref(1, "key"), operands.ref(2, "value")
    mask = operands.ref(3, "attn_mask")
    shape, size = operands.shape(0, "query"), operands.out.nbytes / max(operands.out.numel, 1)
    kept = tuple(ref for ref in (query, key, value, mask) if ref is not None)
    if is_flash(operands, device_kind):
        return (*kept, ValueRef(operands.op.name)), 4.0 * prod(shape[:-1])
    # plain products: scaled copies of query and key, one of value, probabilities, and with dropout its factors and result
    scores = prod(shape[:-1]) * operands.shape(1, "key")[-2] * size
    copies = sum(prod(operands.spec_of(ref).shape) for ref in (query, key, value) if ref is not None) * size
    factor = 3 if operands.number(4, "dropout_p", 0.0) > 0 else 1
    return (), copies + factor * scores


def _recurrent(operands: Operands) -> Kept:
    """Its tensors, and of each layer, direction and step the gates, the cell and the output."""
    gates = {"lstm": 4, "gru": 3}.get(operands.op.target.split(".")[1], 1)
    layers, hidden = operands.op.outputs[-1].shape[0], operands.op.outputs[-1].shape[2]
    size = operands.out.nbytes / max(operands.out.numel, 1)
    own = prod(operands.shape(0)[:2]) * layers * hidden * (gates + 2) * size
    return (*operands.refs(), *(ValueRef(operands.op.name, i) for i in range(len(operands.op.outputs)))), own


def _dropout(operands: Operands, device_kind: str) -> Kept:
    """CPUs keep the factors in the input's type, the fused kernel of GPUs a byte per element."""
    if operands.op.rng is None:
        return (), 0.0
    return (), float(operands.out.numel if device_kind == "cuda" else operands.out.nbytes)


def _multiply(operands: Operands) -> Kept:
    refs = operands.refs()
    if len(refs) < 2:
        return (), 0.0
    return tuple(ref for i, ref in enumerate(refs[:2]) if operands.needs(refs[1 - i])), 0.0


def _divide(operands: Operands) -> Kept:
    refs = operands.refs()
    if len(refs) < 2:
        return (), 0.0
    return (refs if operands.needs(refs[1]) else refs[1:]), 0.0


def _normalize(operands: Operands) -> Kept:
    """The input and two statistics per group (taken as one per row of the last dimension, at most)."""
    source = operands.refs()[0]
    spec = operands.spec_of(source)
    name = operands.op.target.split(".")[1]
    if name == "batch_norm":
        rows = 2 * spec.shape[1] if len(spec.shape) > 1 else 1  # and clones of the running statistics
    elif name in ("group_norm", "instance_norm"):
        rows = int(operands.number(1, "num_groups", spec.shape[1])) * spec.shape[0]
    else:
        normal = operands.arg(1, "normalized_shape")
        rows = spec.numel // max(prod(n for n in normal if isinstance(n, int)), 1) if isinstance(normal, tuple) else spec.numel
    weights = tuple(ref for ref in operands.refs() if isinstance(ref, StateRef))
    return (source, *weights), 8.0 * rows


def _cross_entropy(operands: Operands) -> Kept:
    """The logarithms of the probabilities, and the targets."""
    logits = operands.refs()[0]
    return operands.refs()[1:], float(operands.spec_of(logits).nbytes)


def _inputs(operands: Operands) -> Kept:
    return operands.refs(), 0.0


def _max_pool(operands: Operands) -> Kept:
    """The input, and an int64 index per result."""
    hidden = 8.0 * operands.out.numel if len(operands.op.outputs) == 1 else 0.0
    results = tuple(ValueRef(operands.op.name, i) for i in range(1, len(operands.op.outputs)))
    return (*operands.refs(), *results), hidden


def _selected(operands: Operands) -> Kept:
    """The indices, which are the second result."""
    return tuple(ValueRef(operands.op.name, i) for i in range(1, len(operands.op.outputs))), 0.0


_RULES: dict[str, Callable[[Operands], Kept]] = {
    "mul": _multiply,
    "div": _divide,
    "layer_norm": _normalize,
    "group_norm": _normalize,
    "batch_norm": _normalize,
    "farflung": _normalize,
    "cross_entropy_loss": _cross_entropy,
    "mse_loss": _inputs,
    "l1_loss": _inputs,
    "nll_loss": _inputs,
    "nll_loss_nd": _inputs,
    "max_pool1d": _max_pool,
    "max_pool2d": _max_pool,
    "adaptive_max_pool1d": _max_pool,
    "adaptive_max_pool2d": _max_pool,
    **dict.fromkeys(("gru", "lstm", "rnn_relu", "rnn_tanh"), _recurrent),
    "topk": _selected,
    "sort": _selected,
}
