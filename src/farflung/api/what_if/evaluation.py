"""What one plan would do on one topology: step time, throughput, memory, cost and energy. Takes milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from farflung.api.plan_file import PlanFile
from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import CostTables, Estimate, Plan
from farflung.planners.finish import Problem, draft_stages
from farflung.simulator import Bill, PriceTable, Simulation, Simulator

__all__ = ["NOT_INCLUDED", "Evaluation", "MachineUse", "Spending", "adapted", "evaluate"]

#: What the figures leave out, for people who decide by them.
NOT_INCLUDED = (
    "time before the first step: renting and starting machines, joining, capturing the model, sending weights",
    "checkpoints, evaluation and generated text",
    "deaths of machines, recoveries and the steps that they repeat",
    "loading data, if it is slower than computing",
    "processor time for encryption and transport, lost packets and slow start of links",
    "rent and energy of machines that the plan does not use, and of the broker",
    "memory of Python and PyTorch themselves, a few hundred MB on each machine",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUse:
    """One machine of the plan. ``busy``: share of the step. ``hour``: price of an hour, with energy and traffic left out."""

    name: str
    region: str
    stages: tuple[int, ...]
    busy: float
    memory_bytes: float
    memory_limit: float
    hour: float

    @property
    def fits(self) -> bool:
        """Whether the plan's figure is within the limit."""
        return self.memory_bytes <= self.memory_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Money and energy of one step."""

    step: Bill
    step_seconds: float
    steps: int

    @property
    def hour(self) -> float:
        """Money per hour of training."""
        return self.step.total * 3600.0 / self.step_seconds if self.step_seconds > 0 else 0.0

    @property
    def run(self) -> float:
        """Money for all steps of the job."""
        return self.step.total * self.steps

    @property
    def watts(self) -> float:
        """Mean power of all machines of the plan."""
        return self.step.joules / self.step_seconds if self.step_seconds > 0 else 0.0

    @property
    def run_kwh(self) -> float:
        """Energy for all steps of the job."""
        return self.step.joules * self.steps / 3.6e6


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A plan with all that is predicted of it. ``estimate`` has the step time of ``simulation``."""

    plan: Plan
    job: JobSpec
    topology: Topology
    estimate: Estimate
    simulation: Simulation
    machines: tuple[MachineUse, ...]
    spending: Spending

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of one optimizer step."""
        return self.simulation.step_seconds

    @property
    def samples_per_second(self) -> float:
        """Samples of all micro-batches per second."""
        return self.simulation.samples_per_second

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second (0: the data of the job has none)."""
        return self.samples_per_second * (self.job.data.sequence if self.job.data.tokenized else 0)

    @property
    def bottleneck(self) -> str:
        """What is busy longest."""
        return self.simulation.bound_by

    @property
    def run_seconds(self) -> float:
        """Seconds for all steps of the job."""
        return self.step_seconds * self.job.steps

    @property
    def lacking(self) -> tuple[MachineUse, ...]:
        """The machines that lack memory."""
        return tuple(machine for machine in self.machines if not machine.fits)

    def plan_file(self, graph: Graph | None = None) -> dict[str, object]:
        """Return a plan file with the estimate, as ``farflung plan --json`` prints it.

        Args:
            graph: the model, where ``farflung simulate`` could not capture it from the job again.
        """
        body = PlanFile(plan=self.plan, job=self.job, topology=self.topology, graph=graph).to_dict()
        return body | {"estimate": self.estimate.to_dict()}


def evaluate(graph: Graph, plan: Plan, topology: Topology, job: JobSpec, prices: PriceTable) -> Evaluation:
    """Simulate one step of ``plan``. A plan that does not fit is evaluated as well (see ``Evaluation.lacking``).

    Raises:
        InputError: the topology lacks a device of the plan.
        GraphError: the plan is for another graph.
    """
    simulator = Simulator(graph, topology, job, tables=CostTables.of(graph))
    estimate, simulation = simulator.judge(plan, prices)
    assert simulation.bill is not None
    busy = {use.device: use.busy_seconds for use in simulation.devices}
    machines = tuple(
        MachineUse(
            name=device.device,
            region=topology.device(device.device).region,
            stages=tuple(stage.index for stage in plan.stages_of(device.device)),
            busy=busy.get(device.device, 0.0) / simulation.step_seconds if simulation.step_seconds > 0 else 0.0,
            memory_bytes=device.memory_bytes,
            memory_limit=device.memory_limit,
            hour=prices.device(device.device).hour,
        )
        for device in estimate.devices
    )
    spending = Spending(step=simulation.bill, step_seconds=simulation.step_seconds, steps=job.steps)
    return Evaluation(
        plan=plan,
        job=job,
        topology=topology,
        estimate=estimate,
        simulation=simulation,
        machines=machines,
        spending=spending,
    )


def adapted(graph: Graph, plan: Plan, topology: Topology, job: JobSpec) -> Plan | None:
    """Return the stages of ``plan`` under the codec and micro-batches of ``job`` (``None``: it needs a new plan).

    A new plan is needed when the plan is for another graph, uses a machine that ``topology`` lacks, or has replicas that share
    another number of micro-batches.
    """
    if plan.graph_hash != graph.hash or not set(plan.devices) <= set(topology.names):
        return None
    if plan.replicated and len(plan.micro_batch_sizes) != job.micro_batches:
        return None
    fixed = job.model_copy(update={"plan": job.plan.model_copy(update={"schedule": plan.schedule})})
    try:
        found, _ = draft_stages(Problem.of(graph, topology, fixed), plan.stages, plan.planner)
    except PlanError:
        return None
    return replace(found, sync=plan.sync)
