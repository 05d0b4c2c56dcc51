"""What a rank computes of an operator whose arguments are divided: a rule for each operator that ranks can divide.

Source: Megatron-LM (Shoeybi et al. 2019), section 3: a product whose weight is divided by columns, operators on the divided
dimension, and a product whose weight is divided by rows, after which ranks add. What differs: operators of a captured graph
instead of modules. Experts are divided by features too, so ranks have equal work wherever tokens go. An operator without a rule
is computed as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farflung.graph.nodes import Arg, Op, StateRef, ValueRef
from farflung.graph.opset import OpClass, info
from farflung.graph.tensor_parallel.operands import Divided, Operands, Rule
from farflung.graph.tensor_parallel.split import ComputedWhole, Split, SplitBySections, SplitOfView
from farflung.graph.tensor_parallel.view_rules import pieces_of, reshaped
from farflung.graph.tensor_parallel.vocabulary_rules import LOSS, loss_over_parts

__all__ = ["PRODUCTS", "VIEWS", "Product", "rule_of", "transposed"]


# -- products with a weight -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Product:
    """Where a product has its input, weight and bias (-1: none).

    ``out``: the dimension of the weight that makes the results, ``inner``: the one that meets the input. ``count``: how many
    dimensions the weight has. A weight with three has one matrix for each expert.
    """

    value: int
    weight: int
    bias: int
    out: int
    inner: int
    count: int = 2


#: The products whose weights are divided.
PRODUCTS: Mapping[str, Product] = {
    "aten.linear.default": Product(0, 1, 2, 0, 1),
    "aten.addmm.default": Product(1, 2, 0, 1, 0),
    "aten.mm.default": Product(0, 1, -1, 1, 0),
    "aten.matmul.default": Product(0, 1, -1, 1, 0),
    "aten.bmm.default": Product(0, 1, -1, 2, 1, 3),
    "farflung.grouped_mm": Product(0, 1, -1, 2, 1, 3),
}


def _product(given: Operands) -> Divided:
    """The input of a product is divided: along the features (then ranks add), or along another dimension."""
    where = PRODUCTS[given.op.target]
    value, weight = given.tensor(where.value), given.tensor(where.weight)
    split, last = given.split(value), len(given.spec(value).shape) - 1
    if isinstance(weight, ValueRef) and where.count == 3:
        return _experts(given, where, split, given.split(weight), weight)
    if isinstance(weight, ValueRef) or given.split(weight) is not None or given.op.kwargs:
        return _matmul(given)
    if split is None or not split.even(given.ranks) or len(given.spec(weight).shape) != where.count:
        raise ComputedWhole
    if split.dim < last:
        if where.count == 3:
            raise ComputedWhole
        return Divided((split,))
    return Divided((None,), states={weight.name: split.at(where.inner)}, summed=True)


def _experts(given: Operands, where: Product, value: Split | None, weight: Split | None, ref: ValueRef) -> Divided:
    """A product with a weight for each expert, which is a view of a state, or a product of two values."""
    last = len(given.op.outputs[0].shape) - 1
    if value is None and weight is not None and weight.dim == where.out:
        return Divided((weight.at(last),))
    if value is not None and value.dim == last:
        if weight is None:
            raise SplitOfView(ref, value.at(where.inner))
        if weight == value.at(where.inner):
            return Divided((None,), summed=True)
    return _matmul(given)


def _matmul(given: Operands) -> Divided:
    """A product of two values that are divided along a leading dimension."""
    if given.op.target not in ("aten.matmul.default", "aten.bmm.default"):
        raise ComputedWhole
    return _aligned(given, least=3)


def _attention(given: Operands) -> Divided:
    """Heads are divided. With grouped queries, ranks have the keys and values of their queries."""
    splits = [given.split(given.tensor(place)) for place in range(3)]
    heads = len(given.op.outputs[0].shape) - 3
    mask = given.arg(3, "attn_mask")
    if any(split is None or split.dim != heads or len(split.sections) > 1 for split in splits):
        raise ComputedWhole
    if isinstance(mask, (ValueRef, StateRef)):
        shape, own = given.spec(mask).shape, given.split(mask)
        place = len(shape) - 3
        if (place >= 0 and shape[place] > 1) if own is None else own.dim != place:
            raise ComputedWhole
    return Divided((splits[0],))


# -- element by element ---------------------------------------------------------------------------------------------------

#: Operators of the class that look at other elements, or that draw random numbers in a way of their own.
_NOT_ELEMENTWISE = frozenset(
    f"aten.{name}.default"
    for name in ("glu", "prelu", "tril", "triu", "rrelu", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
)


def _aligned(given: Operands, least: int = 1) -> Divided:
    """Operators that broadcast: each operand has the divided dimension in the same place from the right, or lacks it.

    ``least``: the first place from the right that may be divided.
    """
    refs: list[ValueRef | StateRef] = [*given.op.values(), *(StateRef(name) for name in given.op.states())]
    found = {(len(given.spec(ref).shape) - split.dim, split.sections) for ref in refs if (split := given.split(ref)) is not None}
    if len(found) != 1 or len(given.op.outputs) != 1:
        raise ComputedWhole
    ((place, sections),) = found
    if place < least:
        raise ComputedWhole
    states: dict[str, Split] = {}
    for ref in refs:
        shape = given.spec(ref).shape
        if given.split(ref) is not None or len(shape) < place or shape[-place] == 1:
            continue
        if not isinstance(ref, StateRef):
            raise ComputedWhole
        states[ref.name] = Split(len(shape) - place, sections)
    return Divided((Split(len(given.op.outputs[0].shape) - place, sections),), states=states)


# -- views ----------------------------------------------------------------------------------------------------------------


def _same(given: Operands) -> Divided:
    return Divided((given.only()[1],))


def _reshaped(given: Operands) -> Divided:
    ref, split = given.only()
    after = given.op.outputs[0]
    found = reshaped(given.spec(ref).shape, after.shape, split, given.ranks)
    if given.op.target == "aten.flatten.using_ints":
        return Divided((found,))
    if not isinstance(given.arg(1), tuple):
        raise ComputedWhole
    return Divided((found,), given.replaced(1, found.local(after, given.ranks).shape))


def _unflattened(given: Operands) -> Divided:
    ref, split = given.only()
    before, after = given.spec(ref).shape, given.op.outputs[0]
    found = reshaped(before, after.shape, split, given.ranks)
    dim, count = given.dim(1, 0, len(before)), len(after.shape) - len(before) + 1
    return Divided((found,), given.replaced(2, found.local(after, given.ranks).shape[dim : dim + count]))


def _permuted(given: Operands) -> Divided:
    return Divided((given.only()[1].at(_order(given).index(given.only()[1].dim)),))


def transposed(given: Operands, split: Split) -> Split:
    """Where the first argument of a transposition is divided if its result is divided as ``split`` says."""
    return split.at(_order(given)[split.dim])


def _order(given: Operands) -> list[int]:
    """For each dimension of a transposition's result, that of its argument."""
    count = len(given.spec(given.tensor()).shape)
    name = given.op.target.split(".")[1]
    order = list(range(count))
    if name == "permute":
        dims = given.arg(1, "dims")
        if not isinstance(dims, tuple):
            raise ComputedWhole
        order = [dim % count for dim in dims if isinstance(dim, int)]
    elif name != "t" or count == 2:
        first, second = (0, 1) if name == "t" else (given.dim(1, 0, count, "dim0"), given.dim(2, 1, count, "dim1"))
        order[first], order[second] = order[second], order[first]
    return order


def _unsqueezed(given: Operands) -> Divided:
    ref, split = given.only()
    dim = given.dim(1, 0, len(given.spec(ref).shape) + 1)
    return Divided((split.at(split.dim + (dim <= split.dim)),))


def _squeezed(given: Operands) -> Divided:
    ref, split = given.only()
    shape = given.spec(ref).shape
    dim = given.dim(1, 0, len(shape))
    return Divided((split.at(split.dim - (shape[dim] == 1 and dim < split.dim)),))


def _expanded(given: Operands) -> Divided:
    ref, split = given.only()
    sizes = given.arg(1, "size")
    if not isinstance(sizes, tuple):
        raise ComputedWhole
    dim = split.dim + len(sizes) - len(given.spec(ref).shape)
    local = tuple(split.size // given.ranks if place == dim else size for place, size in enumerate(sizes))
    return Divided((split.at(dim),), given.replaced(1, local))


def _cut(given: Operands) -> Divided:
    """``split`` and ``chunk``."""
    ref, split = given.only()
    shape, results = given.spec(ref).shape, given.op.outputs
    dim = given.dim(2, 0, len(shape))
    if dim != split.dim:
        return Divided((split,) * len(results))
    pieces = pieces_of(split, [result.shape[dim] for result in results])
    size = given.arg(1)
    local: Arg = size
    if isinstance(size, tuple):
        local = tuple(result.shape[dim] // given.ranks for result in results)
    elif len({result.shape[dim] for result in results}) > 1:
        raise ComputedWhole
    elif "chunk" not in given.op.target:
        local = results[0].shape[dim] // given.ranks
    return Divided(tuple(Split(dim, piece) for piece in pieces), given.replaced(1, local))


def _sliced(given: Operands) -> Divided:
    ref, split = given.only()
    shape = given.spec(ref).shape
    dim = given.dim(1, 0, len(shape))
    if dim != split.dim:
        return Divided((split,))
    begin, end, step = given.arg(2, "start", 0), given.arg(3, "end", None), given.arg(4, "step", 1)
    if step != 1 or not isinstance(begin, int | None) or not isinstance(end, int | None):
        raise ComputedWhole
    first, last, _ = slice(begin, end).indices(shape[dim])
    if first >= last or len(given.op.args) < 4:
        raise ComputedWhole
    pieces = [piece for piece in (first, last - first, shape[dim] - last) if piece > 0]
    found = pieces_of(split, pieces)[1 if first else 0]
    return Divided((Split(dim, found),), (*given.op.args[:2], first // given.ranks, last // given.ranks, *given.op.args[4:]))


def _taken_out(given: Operands) -> Divided:
    """``select`` and ``unbind``."""
    ref, split = given.only()
    shape = given.spec(ref).shape
    dim = given.dim(1, 0, len(shape))
    if dim == split.dim:
        raise SplitBySections((1,) * shape[dim]) if shape[dim] <= given.ranks * 4 else ComputedWhole
    return Divided((split.at(split.dim - (dim < split.dim)),) * len(given.op.outputs))


def _joined(given: Operands) -> Divided:
    """``cat``: along another dimension all parts are divided alike, and along the divided one each is divided."""
    parts = given.arg(0)
    if not isinstance(parts, tuple):
        raise ComputedWhole
    refs = [part for part in parts if isinstance(part, (ValueRef, StateRef)) and given.spec(part).shape != (0,)]
    splits = [given.split(ref) for ref in refs]
    dim = given.dim(1, 0, len(given.op.outputs[0].shape))
    first = splits[0]
    if first is None or any(split is None or split.dim != first.dim for split in splits):
        raise ComputedWhole
    if dim == first.dim:
        sections = [section for split in splits if split is not None for section in split.sections]
        return Divided((Split(dim, tuple(sections)),))
    if any(split != first for split in splits):
        raise ComputedWhole
    return Divided((first,))


# -- operators that reduce another dimension ------------------------------------------------------------------------------


def _softmax(given: Operands) -> Divided:
    ref, split = given.only()
    if given.dim(1, -1, len(given.spec(ref).shape)) == split.dim:
        raise ComputedWhole
    return Divided((split,))


def _reduced(given: Operands) -> Divided:
    ref, split = given.only()
    count = len(given.spec(ref).shape)
    dims = given.arg(1, "dim")
    if not isinstance(dims, tuple) or not dims:
        raise ComputedWhole
    gone = {dim % count for dim in dims if isinstance(dim, int)}
    if split.dim in gone:
        raise ComputedWhole
    kept = len(given.op.outputs[0].shape) == count
    return Divided((split if kept else split.at(split.dim - sum(dim < split.dim for dim in gone)),))


def _normalized(given: Operands) -> Divided:
    ref, split = given.only()
    shape = given.arg(1)
    if not isinstance(shape, tuple) or split.dim >= len(given.spec(ref).shape) - len(shape) or len(given.op.outputs) != 1:
        raise ComputedWhole
    return Divided((split,))


#: The views of a weight that ranks can divide.
VIEWS = frozenset({"aten.transpose.int", "aten.swapaxes.default", "aten.t.default", "aten.permute.default"})

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(PRODUCTS, _product),
    LOSS: loss_over_parts,
    "aten.scaled_dot_product_attention.default": _attention,
    **dict.fromkeys([f"aten.{name}.default" for name in ("contiguous", "clone", "alias", "detach")], _same),
    **dict.fromkeys([f"aten.{name}.default" for name in ("view", "reshape", "_unsafe_view")], _reshaped),
    "aten.flatten.using_ints": _reshaped,
    "aten.unflatten.int": _unflattened,
    **dict.fromkeys(VIEWS, _permuted),
    "aten.unsqueeze.default": _unsqueezed,
    "aten.squeeze.dim": _squeezed,
    "aten.expand.default": _expanded,
    **dict.fromkeys(["aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default", "aten.chunk.default"], _cut),
    "aten.slice.Tensor": _sliced,
    **dict.fromkeys(["aten.select.int", "aten.unbind.int"], _taken_out),
    "aten.cat.default": _joined,
    **dict.fromkeys(["aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int"], _softmax),
    **dict.fromkeys(["aten.mean.dim", "aten.sum.dim_IntList", "aten.amax.default", "aten.amin.default"], _reduced),
    **dict.fromkeys(["aten.layer_norm.default", "aten.rms_norm.default"], _normalized),
}


def rule_of(op: Op) -> Rule:
    """The rule of an operator.

    Raises:
        ComputedWhole: there is none.
    """
    if op.target in _RULES:
        return _RULES[op.target]
    plain = op.rng is None or op.target == "aten.dropout.default"
    known = info(op.target).op_class is OpClass.ELEMENTWISE and op.target.startswith("aten.")
    if known and plain and op.target not in _NOT_ELEMENTWISE:
        return _aligned
    raise ComputedWhole


def _checked(targets: Sequence[str]) -> None:
    """Fail at import if the allow-list has lost a name."""
    for target in targets:
        info(target)


_checked([*_RULES, *_NOT_ELEMENTWISE])
