"""Plans by hand of a chain whose stages have replicas."""

from farflung.job.spec import JobSpec
from farflung.plan import Plan, Replica, Stage
from tests.support.plans.hand_plans import chain

JOB = JobSpec(micro_batch_sizes=(4, 4, 4, 4))
GRAPH = chain()


def alone(*replicas: tuple[str, int, int]) -> Plan:
    """One stage on the devices of ``replicas``."""
    held = tuple(Replica(device=device, first=first, end=end) for device, first, end in replicas)
    stages = (Stage(index=0, start=0, stop=len(GRAPH.ops), device=held[0].device, replicas=held if len(held) > 1 else ()),)
    return Plan(graph_hash=GRAPH.hash, planner="hand", stages=stages, micro_batch_sizes=JOB.micro_batch_sizes)
