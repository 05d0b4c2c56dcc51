"""Evaluate a cluster before it exists: change machines, links and settings, and see what a job would do.

- ``scenario``: ``Scenario``: all that a user can change, as data, and the topology and job that result.
- ``sources``: where the job and the topology of a scenario come from.
- ``model_presets``: jobs with well-known models.
- ``evaluation``: ``evaluate``: step time, throughput, memory, cost and energy of one plan, in milliseconds.
- ``planning_process``: a child process that captures models and makes plans; ``planning_client`` is its other end.
- ``session``: ``WhatIfSession``: follows the newest scenario: first the present plan, then a new one.
"""

from farflung.api.what_if.evaluation import Evaluation, evaluate
from farflung.api.what_if.scenario import Choices, LinkChange, MachineChange, Scenario
from farflung.api.what_if.session import View, WhatIfSession

__all__ = [
    "Choices",
    "Evaluation",
    "LinkChange",
    "MachineChange",
    "Scenario",
    "View",
    "WhatIfSession",
    "evaluate",
]
