"""Steps that other systems would take for a job on a topology, by the cost models of ``cost.other_systems``.

Only transformers: a layer is an attention of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator

from farflung.cluster import Topology
from farflung.cost.other_systems import SystemStep, TransformerWork, megatron_step, zero1_step, zero3_step
from farflung.graph.ir import Graph, TensorSpec, ValueRef
from farflung.graph.opset import OpClass, info
from farflung.job.spec import JobSpec
from farflung.optim import state_bytes
from farflung.plan.estimation.cost_tables import CostTables

__all__ = ["other_systems", "transformer_work"]


def other_systems(
    graph: Graph, topology: Topology, job: JobSpec, tables: CostTables | None = None, most: int | None = None
) -> tuple[SystemStep, ...]:
    """The steps of Megatron-LM, ZeRO-3 and DeepSpeed's pipelines, the shortest first. ``most``: the largest degree of pipelines.

    Empty: the model is no transformer, or nothing fits.
    """
    work = transformer_work(graph, topology, job, tables)
    if work is None:
        return ()
    found = (megatron_step(work, topology, most), zero1_step(work, topology, most), zero3_step(work, topology))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.seconds))


def transformer_work(graph: Graph, topology: Topology, job: JobSpec, tables: CostTables | None = None) -> TransformerWork | None:
    """The work of a step of ``job`` (None: the graph has no attention). The first device's kind decides what is saved."""
    queries = [spec for spec in _queries(graph) if len(spec.shape) >= 3]
    if not queries:
        return None
    cost, end = (tables or CostTables.of(graph)).table(topology.devices[0].kind), len(graph.ops)
    part = sum(job.micro_batch_sizes) / max(job.micro_batch_sizes) / job.micro_batches  # of a largest one, on average
    parameters = float(sum(graph.state[name].spec.nbytes for name in graph.trained))
    return TransformerWork(
        layers=len(queries),
        heads=min(spec.shape[-3] for spec in queries),
        micro_batches=job.micro_batches,
        forward=float(cost.forward_sum[end]) * part,
        backward=float(cost.backward_sum[end]) * part,
        activations=max(spec.nbytes for spec in queries) * part,
        saved=cost.saved.total(0, end) * part,
        parameters=parameters,
        states=2 * parameters + state_bytes(job.optimizer, graph, tuple(graph.trained)),
    )


def _queries(graph: Graph) -> Iterator[TensorSpec]:
    """The query of each attention, which is as large as what passes between two layers."""
    for op in graph.ops:
        if info(op.target).op_class is OpClass.ATTENTION and isinstance(op.args[0], ValueRef):
            yield graph.spec(op.args[0])
