"""Plans: from a job and the joined machines to a plan with its estimate.

- ``device_measurements``: ``DeviceMeasurements`` asks workers to measure their devices before a plan is made.
- ``cluster_view``: ``cluster_of``: the joined workers as a topology.
- ``run_planner``: ``plan_run``: runs the job's planner and checks the result.
- ``limited_judge``: ``LimitedJudges``: predictions that end their planner if the run is over, or takes too long.
- ``planned``: ``Planned``: a plan with its topology and estimate, as tables and lines.
- ``attempt_start``: ``Start``: the step and the states with which an attempt begins.
"""

from farflung.broker.planning.cluster_view import cluster_of, strangers_of
from farflung.broker.planning.limited_judge import LimitedJudges
from farflung.broker.planning.planned import Planned
from farflung.broker.planning.run_planner import Judge, plan_run, predict_plan

__all__ = ["Judge", "LimitedJudges", "Planned", "cluster_of", "plan_run", "predict_plan", "strangers_of"]
