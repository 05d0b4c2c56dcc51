"""What a program imports: capture a module, plan and simulate it, train it, here or on the workers of a ticket.

| module            | content                                                                    |
| ----------------- | -------------------------------------------------------------------------- |
| `capturing`       | `capture`: a module becomes a graph                                          |
| `planning`        | `plan` and `simulate`                                                        |
| `arguments`       | the arguments of `train` become a job                                        |
| `batches/`        | the caller's data as batches                                                 |
| `evaluation`      | `Evaluation`: what `train` evaluates on, and when                            |
| `callbacks`       | the caller's callbacks, `StopTraining` and `EarlyStop`                       |
| `training`        | `train`                                                                      |
| `local_training`  | training on threads of this process; `local_folder` has its files            |
| `remote_training` | training on the workers of a ticket                                          |
| `reports`         | `report` of `train`: experiment trackers                                     |
| `result`          | `Outcome` and `TrainResult`: losses, records, the trained weights            |
| `argument_names`  | messages for Python callers                                                  |
| `detached/`       | `connect`: runs that go on without this process                              |
| `submission`      | from a job file to a bundle                                                  |
| `tolerance`       | what a plan tolerates                                                        |
| `plan_explanation` | why a plan is as it is                                                      |
| `topology_changes` | one change of a topology, as text (`--what-if` of `farflung plan`)          |
| `generation`      | text by a trained model                                                      |
| `optimizers/`     | optimizers and schedules of the caller                                       |
| `plan_file`       | a plan with its job and topology, as a file                                  |
| `what_if/`        | changes of a job and its cluster, and what they would bring                  |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farflung.api.callbacks import EarlyStop, StopTraining
    from farflung.api.capturing import capture
    from farflung.api.detached import connect
    from farflung.api.evaluation import Evaluation
    from farflung.api.planning import plan, simulate
    from farflung.api.result import TrainResult
    from farflung.api.training import train

__all__ = ["EarlyStop", "Evaluation", "StopTraining", "TrainResult", "capture", "connect", "plan", "simulate", "train"]

_MODULES = {
    "EarlyStop": "callbacks",
    "Evaluation": "evaluation",
    "StopTraining": "callbacks",
    "TrainResult": "result",
    "capture": "capturing",
    "connect": "detached",
    "plan": "planning",
    "simulate": "planning",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: a command that submits a job loads no planner."""
    if name in _MODULES:
        return getattr(import_module(f"farflung.api.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'farflung.api' has no attribute {name!r}")
