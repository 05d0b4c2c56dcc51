"""The plan: stages, placement, schedule and codecs as one immutable document, its checks and its estimate.

``parts``, ``model``   Stage, Replica, LinkPlan and more; ``Plan``, which consists of them
``document``           the plan as JSON
``usable_devices``     the devices that a job lets its plans use
``engine_support``     whether engines support the operators of their stages
``links``, ``traffic`` stages that exchange values, and the bytes of these values
``codec_choice/``      the codec of each link and of each exchange between replicas
``buckets``, ``reduction_choice``   how replicas sum gradients
``synchronization``, ``overlap``   whether a sync strategy fits the plan, and which exchanges compute hides
``link_memory``        the sample cache of each link
``evaluation_cuts``    the same stages on another graph, for evaluation and generation
``estimation/``        what the plan is predicted to cost
``check``              whether the plan fits its graph, topology and job
``fault_tolerance/``   which deaths the plan survives
``verification``       which micro-batches a second worker computes again
``report/``            text for people
"""

from farflung.plan.check import check_memory, check_plan, check_replicas
from farflung.plan.codec_choice.compression import assign_codecs, codec_lines, codec_of, wire_factor_of
from farflung.plan.estimation.cost_tables import CostTables
from farflung.plan.estimation.estimate import estimate
from farflung.plan.estimation.results import DeviceEstimate, Estimate, LinkEstimate, StageEstimate
from farflung.plan.links import make_links
from farflung.plan.model import PLAN_VERSION, CodecChoice, LinkPlan, Plan, Replica, Stage
from farflung.plan.report.estimate_tables import device_rows, explain, link_rows, stage_rows
from farflung.plan.report.summary import plan_answer, plan_line, stage_table

__all__ = [
    "PLAN_VERSION",
    "CodecChoice",
    "CostTables",
    "DeviceEstimate",
    "Estimate",
    "LinkEstimate",
    "LinkPlan",
    "Plan",
    "Replica",
    "Stage",
    "StageEstimate",
    "assign_codecs",
    "check_memory",
    "check_plan",
    "check_replicas",
    "codec_lines",
    "codec_of",
    "device_rows",
    "estimate",
    "explain",
    "link_rows",
    "make_links",
    "plan_answer",
    "plan_line",
    "stage_rows",
    "stage_table",
    "wire_factor_of",
]
