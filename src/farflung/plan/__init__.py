"""The plan: stages, placement, schedule and codecs as one immutable document, its checks and its estimate."""

from farflung.plan.check import check_memory, check_plan, check_replicas
from farflung.plan.compression import assign_codecs, codec_lines, codec_of, wire_factor_of
from farflung.plan.estimate import CostTables, DeviceEstimate, Estimate, LinkEstimate, StageEstimate, estimate
from farflung.plan.explain import device_rows, explain, link_rows, stage_rows
from farflung.plan.links import make_links
from farflung.plan.model import PLAN_VERSION, CodecChoice, LinkPlan, Plan, Replica, Stage
from farflung.plan.summary import plan_answer, plan_line, stage_table

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
