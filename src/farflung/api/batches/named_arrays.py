"""The caller's batches as arrays by placeholder name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from farflung.api.batches.given_data import GivenBatches
from farflung.engines.base import Array
from farflung.errors import DataError, InputError
from farflung.graph.ir import Graph

__all__ = ["Batches", "EvaluationBatches", "batch_rows", "call_order", "evaluation_order"]

#: (step, micro-batch) -> arrays by placeholder name.
Batches = Callable[[int, int], Mapping[str, Array]]
#: Index of an evaluation batch -> arrays by placeholder name.
EvaluationBatches = Callable[[int], Mapping[str, Array]]


def batch_rows(graph: Graph) -> int:
    """Return the samples of a micro-batch: the first dimension that all inputs have in common (1: they have none)."""
    first = {op.outputs[0].shape[0] for op in graph.placeholders if op.outputs[0].shape}
    return max(next(iter(first)), 1) if len(first) == 1 else 1


def call_order(data: GivenBatches, graph: Graph, first: Any) -> Batches:
    """The caller's batches, named and checked; ``first`` is what they gave for step 0, micro-batch 0 already."""
    read = _reader(graph, data.origin(0, 0))

    def batches(step: int, micro_batch: int) -> Mapping[str, Array]:
        given = first if (step, micro_batch) == (0, 0) else data.batch(step, micro_batch)
        return read(given, data.origin(step, micro_batch))

    return batches


def evaluation_order(data: GivenBatches, graph: Graph) -> EvaluationBatches:
    """The caller's batches for evaluation, named and checked."""
    read = _reader(graph, data.origin(0))
    return lambda index: read(data.batch(index), data.origin(index))


def _reader(graph: Graph, example: str) -> Callable[[Any, str], Mapping[str, Array]]:
    from farflung.frontends.torch.ambient import batch_arrays

    order = dict(graph.meta).get("inputs", "").split(",")
    specs = {op.name: op.outputs[0] for op in graph.placeholders}

    def read(given: Any, where: str) -> Mapping[str, Array]:
        try:
            arrays = batch_arrays(given, order)
        except (InputError, TypeError) as error:
            raise DataError(f"{where} did not return what {example} did: {error}") from error
        for name, spec in specs.items():
            array = arrays.get(name)
            if array is None:
                raise DataError(f"{where} returned no {name!r}; it returned {', '.join(arrays) or 'nothing'}")
            if array.shape != spec.shape or array.dtype.name != spec.dtype:
                remedy = "drop a smaller last one, or fill it up"
                if array.dtype.name != spec.dtype:
                    remedy = f"convert them to {spec.dtype}"
                elif array.shape[1:] != spec.shape[1:]:
                    remedy = "pad all samples to one length"
                raise DataError(
                    f"{where} returned {name!r} as {array.dtype.name} {list(array.shape)}, {example} as {spec.dtype} "
                    f"{list(spec.shape)}: all batches must be alike ({remedy})"
                )
        return arrays

    return read
