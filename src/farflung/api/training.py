"""``farflung.train``: a user's own module, trained by workers of this process or by the workers of a ticket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farflung.api.batches import batch_rows, call_order
from farflung.api.elsewhere import run_elsewhere
from farflung.api.here import run_here
from farflung.api.submission import check_names, freeze
from farflung.engines.base import Array
from farflung.errors import GraphError, InputError
from farflung.graph.ir import Graph
from farflung.ids import new_id
from farflung.job.check import check_job
from farflung.job.spec import CodecSpec, JobSpec, OptimizerSpec, PlanSpec, SyncSpec
from farflung.plan.model import Plan
from farflung.runtime.bundle import Bundle
from farflung.telemetry.records import StepRecord

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TrainResult", "train"]

#: ``batch_fn(step, micro_batch)`` gives the module's arguments: a tuple (positional) or a dict (by name) of tensors or arrays.
BatchFunction = Callable[[int, int], Sequence[Any] | Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a training gave.

    ``losses``: one per step, the mean over its micro-batches. ``records``: times and bytes of each step. ``states``:
    parameters and buffers by their first name.
    """

    losses: tuple[float, ...]
    records: tuple[StepRecord, ...]
    plan: Plan
    graph: Graph
    states: Mapping[str, Array] = field(repr=False)

    def state_dict(self) -> dict[str, Array]:
        """Parameters and buffers as NumPy arrays by their names in the module (tied parameters under each of their names)."""
        found: dict[str, Array] = {}
        for state in self.graph.states:
            if state.name in self.states:
                for name in (state.name, *state.aliases):
                    found[name] = self.states[state.name]
        return found


def train(
    module: nn.Module | Callable[[], nn.Module],
    batch_fn: BatchFunction,
    *,
    steps: int,
    micro_batches: int = 1,
    optimizer: str | OptimizerSpec = "sgd",
    lr: float = 1e-3,
    workers: int = 3,
    ticket: str | None = None,
    planner: str = "equal_compute",
    codec: str | CodecSpec = "identity",
    replicas: int = 1,
    sync: str | SyncSpec = "exact",
    seed: int = 0,
    on_step: Callable[[StepRecord], None] | None = None,
) -> TrainResult:
    """Train ``module`` for ``steps`` optimizer steps; the module itself is not changed.

    ``module(*batch_fn(step, micro_batch))`` is the scalar loss; gradients are the mean over the step's micro-batches. The
    result is the same for any number of workers, bit for bit, as long as the codec is lossless.

    Args:
        module: a module with real weights (they are where training begins), a module on the meta device or a function that
            makes a module (its initializers are replayed where the weights live).
        batch_fn: stays in this process, which is the data's home. Called once for each micro-batch, in order.
        steps: optimizer steps.
        micro_batches: micro-batches of a step.
        optimizer: ``"sgd"``, ``"adamw"`` with PyTorch's defaults, or an ``OptimizerSpec``.
        lr: learning rate (an ``OptimizerSpec`` has its own).
        workers: how many workers run as threads of this process, without ``ticket``.
        ticket: a broker's submit ticket; all its idle workers take part.
        planner: who decides which operators run where.
        codec: how values are compressed on links.
        replicas: how many workers share the micro-batches of each stage.
        sync: how replicas agree: ``"exact"``, a strategy's name, or a ``SyncSpec`` with its settings (``order="any"``: gradients
            are summed by a ring, a tree or servers, and the result differs by rounding from plan to plan).
        seed: random numbers (dropout, initializers) are keyed by it.
        on_step: told each step's record as it comes.

    Raises:
        CaptureError: the module can't become a graph; the text says what to change.
        InputError: an argument is out of range, or unknown.
        FarflungError: anything else that ends the training.
        KeyboardInterrupt: Ctrl-C; the text says after how many steps. Workers of this process have ended by then.
    """
    from farflung.frontends.torch.ambient import capture_trainee

    for name, value in (("steps", steps), ("micro_batches", micro_batches), ("workers", workers), ("replicas", replicas)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    job = _job(_optimizer(optimizer, lr), CodecSpec(name=codec) if isinstance(codec, str) else codec)
    job = job.model_copy(
        update={
            "seed": seed,
            "steps": steps,
            "micro_batch_sizes": (1,) * micro_batches,
            "plan": PlanSpec(planner=planner, replicas=replicas),
            "sync": SyncSpec(strategy=sync) if isinstance(sync, str) else sync,
        }
    )
    check_job(job)
    check_names(job)
    first = batch_fn(0, 0)
    graph, states = capture_trainee(module, first)
    graph = freeze(graph, job)
    rows = batch_rows(graph)
    job = job.model_copy(update={"micro_batch_sizes": (rows,) * micro_batches})
    bundle = Bundle(run=new_id("run"), job=job, graphs={rows: graph})
    batches = call_order(batch_fn, graph, first)
    counted = _Counted(on_step or _silent)
    try:
        if ticket is not None:
            outcome = run_elsewhere(bundle, states, batches, ticket, counted)
        else:
            outcome = run_here(bundle, states, batches, workers, counted)
    except GraphError as error:  # an operator refused what the first batch made of it
        raise GraphError(f"{error}; {_about(graph)}") from error
    except KeyboardInterrupt:
        # the same exception, without the threads that it was caught among: they have ended
        where = "its workers have ended" if ticket is None else f"{bundle.run} was told to end after its current step"
        raise KeyboardInterrupt(f"training was interrupted after {counted.steps} of {steps} steps; {where}") from None
    return TrainResult(
        losses=tuple(record.loss for record in outcome.records),
        records=outcome.records,
        plan=outcome.plan,
        graph=graph,
        states=outcome.states,
    )


def _optimizer(optimizer: str | OptimizerSpec, lr: float) -> OptimizerSpec:
    if isinstance(optimizer, OptimizerSpec):
        return optimizer
    if optimizer not in ("sgd", "adamw"):
        raise InputError(f"unknown optimizer {optimizer!r}: known are adamw, sgd; or pass an OptimizerSpec")
    return OptimizerSpec.model_validate({"name": optimizer, "lr": lr})


def _job(optimizer: OptimizerSpec, codec: CodecSpec) -> JobSpec:
    from farflung.frontends.torch.ambient import intra_op_threads

    return JobSpec(name="train", weighting="equal", threads=intra_op_threads(), optimizer=optimizer, codec=codec)


def _about(graph: Graph) -> str:
    from farflung.frontends.torch.ambient import describe_batch

    weights = {state.spec.dtype for state in graph.parameters}
    return describe_batch(weights, {op.name: (op.outputs[0].dtype, op.outputs[0].shape) for op in graph.placeholders})


class _Counted:
    """Passes records on and counts them."""

    def __init__(self, tell: Callable[[StepRecord], None]) -> None:
        self._tell = tell
        self.steps = 0

    def __call__(self, record: StepRecord) -> None:
        self.steps += 1
        self._tell(record)


def _silent(record: StepRecord) -> None:
    return
