"""The layer types of hand-made graphs: PyTorch's names, arguments, operators and default initializers.

Each function composes operators with an ``OperatorBuilder``; ``LAYERS`` is the table. Initializers follow ``torch.nn`` of
version 2: linear and convolution layers are uniform in +-1/sqrt(fan_in), embeddings normal, norms ones and zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Protocol

from farflung.errors import GraphError
from farflung.graph.ir import Arg, DTypeArg, InitStep, LocalRef, StateKind, StateRef, TensorSpec, ValueRef

__all__ = ["LAYERS", "LayerBuilder", "OperatorBuilder", "filled", "normal", "uniform"]

Pair = int | Sequence[int]
#: Composes operators of a builder: ``fn(builder, *values, **arguments) -> value``.
LayerBuilder = Callable[..., ValueRef]


class OperatorBuilder(Protocol):
    """What a layer needs of the builder of its graph (``builder.GraphBuilder``)."""

    training: bool

    def spec(self, value: ValueRef) -> TensorSpec:
        """Shape and element type of a value."""

    def call(self, target: str, *args: Arg, outputs: Sequence[TensorSpec] | None = None, **kwargs: Arg) -> ValueRef:
        """Add one operator; return its first result. ``outputs``: what it gives, if no shape rule is known."""

    def state(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        *,
        init: Sequence[InitStep],
        trainable: bool = True,
        kind: StateKind = StateKind.PARAMETER,
    ) -> StateRef:
        """Add a parameter or buffer of the layer."""

    def update(self, state: StateRef, value: ValueRef) -> None:
        """After each micro-batch's forward, a buffer takes ``value``."""


def filled(shape: Sequence[int], value: float, dtype: str = "float32") -> tuple[InitStep, ...]:
    """An initializer program: all elements ``value``."""
    number: Arg = value if dtype.startswith(("float", "bfloat")) else int(value)
    return (InitStep(target="aten.full.default", args=(tuple(shape), number), kwargs=(("dtype", DTypeArg(dtype)),)),)


def _empty(shape: Sequence[int]) -> InitStep:
    return InitStep(target="aten.empty.memory_format", args=(tuple(shape),), kwargs=(("dtype", DTypeArg("float32")),))


def uniform(shape: Sequence[int], bound: float) -> tuple[InitStep, ...]:
    """An initializer program: uniform in +-``bound``."""
    return (_empty(shape), InitStep(target="aten.uniform_.default", args=(LocalRef(0), -bound, bound), rng=0))


def normal(shape: Sequence[int], deviation: float = 1.0) -> tuple[InitStep, ...]:
    """An initializer program: normal around 0."""
    return (_empty(shape), InitStep(target="aten.normal_.default", args=(LocalRef(0), 0.0, deviation), rng=0))


def _many(value: Pair, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


def _weights(b: OperatorBuilder, shape: Sequence[int], *, bias: bool) -> tuple[StateRef, StateRef | None]:
    fan_in = prod(shape[1:])
    # torch: kaiming_uniform_ with a = sqrt(5), in this order of operations.
    spread = math.sqrt(3.0) * (math.sqrt(2.0 / (1 + math.sqrt(5) ** 2)) / math.sqrt(fan_in))
    weight = b.state("weight", "float32", shape, init=uniform(shape, spread))
    if not bias:
        return weight, None
    return weight, b.state("bias", "float32", shape[:1], init=uniform(shape[:1], 1 / math.sqrt(fan_in)))


def _linear(b: OperatorBuilder, x: ValueRef, *, in_features: int, out_features: int, bias: bool = True) -> ValueRef:
    weight, offset = _weights(b, (out_features, in_features), bias=bias)
    return b.call("linear.default", x, weight, offset)


def _convolution(
    rank: int, b: OperatorBuilder, x: ValueRef, *, in_channels: int, out_channels: int, kernel_size: Pair, **rest: Pair
) -> ValueRef:
    given = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": True}
    unknown = rest.keys() - given.keys()
    if unknown:
        raise GraphError(
            f"unknown argument {min(unknown)!r}: known are in_channels, out_channels, kernel_size, {', '.join(given)}"
        )
    settings = {**given, **rest}
    groups = settings["groups"]
    if not isinstance(groups, int) or groups < 1 or in_channels % groups or out_channels % groups:
        raise GraphError(f"{in_channels} and {out_channels} channels don't divide into {groups} groups")
    shape = (out_channels, in_channels // groups, *_many(kernel_size, rank))
    weight, offset = _weights(b, shape, bias=bool(settings["bias"]))
    windows = [_many(settings[key], rank) for key in ("stride", "padding", "dilation")]
    return b.call(f"conv{rank}d.default", x, weight, offset, *windows, groups)


def _max_pool(b: OperatorBuilder, x: ValueRef, *, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0) -> ValueRef:
    kernel = _many(kernel_size, 2)
    return b.call("max_pool2d.default", x, kernel, kernel if stride is None else _many(stride, 2), _many(padding, 2))


def _avg_pool(b: OperatorBuilder, x: ValueRef, *, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0) -> ValueRef:
    kernel = _many(kernel_size, 2)
    return b.call("avg_pool2d.default", x, kernel, kernel if stride is None else _many(stride, 2), _many(padding, 2))


def _adaptive_avg_pool(b: OperatorBuilder, x: ValueRef, *, output_size: Pair) -> ValueRef:
    return b.call("adaptive_avg_pool2d.default", x, _many(output_size, 2))


def _flatten(b: OperatorBuilder, x: ValueRef, *, start_dim: int = 1, end_dim: int = -1) -> ValueRef:
    return b.call("flatten.using_ints", x, start_dim, end_dim)


def _reshape(b: OperatorBuilder, x: ValueRef, *, shape: Sequence[int]) -> ValueRef:
    return b.call("reshape.default", x, tuple(shape))


def _affine(b: OperatorBuilder, shape: Sequence[int]) -> tuple[StateRef, StateRef]:
    weight = b.state("weight", "float32", shape, init=filled(shape, 1.0))
    return weight, b.state("bias", "float32", shape, init=filled(shape, 0.0))


def _layer_norm(b: OperatorBuilder, x: ValueRef, *, normalized_shape: Pair, eps: float = 1e-5) -> ValueRef:
    shape = _many(normalized_shape, 1)
    if b.spec(x).shape[-len(shape) :] != shape:
        raise GraphError(f"the last sizes of {b.spec(x).shape} are not {shape}")
    return b.call("layer_norm.default", x, shape, *_affine(b, shape), eps)


def _group_norm(b: OperatorBuilder, x: ValueRef, *, num_groups: int, num_channels: int, eps: float = 1e-5) -> ValueRef:
    if b.spec(x).shape[1] != num_channels or num_channels % num_groups:
        raise GraphError(f"{b.spec(x).shape[1]} channels; expected {num_channels}, a multiple of {num_groups}")
    return b.call("group_norm.default", x, num_groups, *_affine(b, (num_channels,)), eps)


def _batch_norm(b: OperatorBuilder, x: ValueRef, *, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> ValueRef:
    shape = (num_features,)
    weight, bias = _affine(b, shape)
    keep = partial(b.state, trainable=False, kind=StateKind.BUFFER)
    mean = keep("running_mean", "float32", shape, init=filled(shape, 0.0))
    variance = keep("running_var", "float32", shape, init=filled(shape, 1.0))
    count = keep("num_batches_tracked", "int64", (), init=filled((), 0, "int64"))
    if not b.training:
        settings: tuple[Arg, ...] = (weight, bias, mean, variance, False, momentum, eps, True)
        return b.call("batch_norm.default", x, *settings, outputs=(b.spec(x),))
    b.update(count, b.call("add.Tensor", count, 1))
    y = b.call("farflung.batch_norm", x, weight, bias, mean, variance, momentum, eps)
    b.update(mean, ValueRef(y.op, 1))
    b.update(variance, ValueRef(y.op, 2))
    return y


def _embedding(b: OperatorBuilder, x: ValueRef, *, num_embeddings: int, embedding_dim: int) -> ValueRef:
    shape = (num_embeddings, embedding_dim)
    return b.call("embedding.default", b.state("weight", "float32", shape, init=normal(shape)), x)


def _dropout(b: OperatorBuilder, x: ValueRef, *, p: float = 0.5) -> ValueRef:
    return b.call("dropout.default", x, float(p), b.training)


def _attention(
    b: OperatorBuilder, q: ValueRef, k: ValueRef, v: ValueRef, *, dropout_p: float = 0.0, is_causal: bool = False
) -> ValueRef:
    return b.call("scaled_dot_product_attention.default", q, k, v, None, float(dropout_p), is_causal)


def _gelu(b: OperatorBuilder, x: ValueRef, *, approximate: str = "none") -> ValueRef:
    return b.call("gelu.default", x, approximate=approximate)


def _leaky_relu(b: OperatorBuilder, x: ValueRef, *, negative_slope: float = 0.01) -> ValueRef:
    return b.call("leaky_relu.default", x, float(negative_slope))


def _softmax(target: str, b: OperatorBuilder, x: ValueRef, *, dim: int = -1) -> ValueRef:
    return b.call(target, x, dim)


def _concat(b: OperatorBuilder, *values: ValueRef, dim: int = 0) -> ValueRef:
    return b.call("cat.default", values, dim)


def _mean(b: OperatorBuilder, x: ValueRef, *, dim: Pair, keepdim: bool = False) -> ValueRef:
    return b.call("mean.dim", x, _many(dim, 1), keepdim)


def _permute(b: OperatorBuilder, x: ValueRef, *, dims: Sequence[int]) -> ValueRef:
    return b.call("permute.default", x, tuple(dims))


def _transpose(b: OperatorBuilder, x: ValueRef, *, dim0: int, dim1: int) -> ValueRef:
    return b.call("transpose.int", x, dim0, dim1)


def _cross_entropy(
    b: OperatorBuilder, x: ValueRef, label: ValueRef, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> ValueRef:
    return b.call("cross_entropy_loss.default", x, label, None, 1, ignore_index, float(label_smoothing))


def _unary(target: str, b: OperatorBuilder, x: ValueRef) -> ValueRef:
    return b.call(target, x)


def _binary(target: str, b: OperatorBuilder, x: ValueRef, y: ValueRef) -> ValueRef:
    return b.call(target, x, y)


_UNARY = {
    "Exp": "exp.default",
    "Identity": "alias.default",
    "Neg": "neg.default",
    "ReLU": "relu.default",
    "SiLU": "silu.default",
    "Sigmoid": "sigmoid.default",
    "Sqrt": "sqrt.default",
    "Tanh": "tanh.default",
}
_BINARY = {
    "Add": "add.Tensor",
    "Div": "div.Tensor",
    "L1Loss": "l1_loss.default",
    "MSELoss": "mse_loss.default",
    "MatMul": "matmul.default",
    "Mul": "mul.Tensor",
    "Sub": "sub.Tensor",
}

#: Layer type -> the function that composes it.
LAYERS: Mapping[str, LayerBuilder] = {
    **{name: partial(_unary, target) for name, target in _UNARY.items()},
    **{name: partial(_binary, target) for name, target in _BINARY.items()},
    "AdaptiveAvgPool2d": _adaptive_avg_pool,
    "AvgPool2d": _avg_pool,
    "BatchNorm1d": _batch_norm,
    "BatchNorm2d": _batch_norm,
    "Concat": _concat,
    "Conv1d": partial(_convolution, 1),
    "Conv2d": partial(_convolution, 2),
    "Conv3d": partial(_convolution, 3),
    "CrossEntropyLoss": _cross_entropy,
    "Dropout": _dropout,
    "Embedding": _embedding,
    "Flatten": _flatten,
    "GELU": _gelu,
    "GroupNorm": _group_norm,
    "LayerNorm": _layer_norm,
    "LeakyReLU": _leaky_relu,
    "Linear": _linear,
    "LogSoftmax": partial(_softmax, "log_softmax.int"),
    "MaxPool2d": _max_pool,
    "Mean": _mean,
    "Permute": _permute,
    "Reshape": _reshape,
    "ScaledDotProductAttention": _attention,
    "Softmax": partial(_softmax, "softmax.int"),
    "Transpose": _transpose,
}
