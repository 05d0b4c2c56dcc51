"""The optimizers that a job can name, and the state that each keeps."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["BUILT_IN", "CAPTURED", "NAMED", "OptimizerName"]

#: ``captured``: an optimizer that the caller's own code made.
OptimizerName = Literal[
    "sgd",
    "adamw",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "asgd",
    "lion",
    "muon",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "captured",
]
CAPTURED: Literal["captured"] = "captured"
#: What people can write.
NAMED: tuple[OptimizerName, ...] = tuple(name for name in get_args(OptimizerName) if name != CAPTURED)
#: Optimizers that an engine runs with its tensor library's own code, if nothing about them needs rules.
BUILT_IN = ("sgd", "adamw")
