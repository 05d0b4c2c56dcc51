"""Messages for Python callers: settings are named as arguments of ``train`` instead of as keys of a job file.

Planners, workers and the broker write ``table.key = value``, because most jobs are files. A Python caller has no such file. What
``train`` raises therefore passes through here.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from pydantic import BaseModel

from farflung.job.rates import stretched
from farflung.job.spec import (
    CheckpointSpec,
    CodecSpec,
    EvaluateSpec,
    JobSpec,
    LimitSpec,
    OptimizerSpec,
    PlanSpec,
    ScheduleSpec,
    SyncSpec,
)
from farflung.known_names import did_you_mean

__all__ = ["in_arguments", "in_typed_names", "known_arguments", "warn_if_stretched"]

P = ParamSpec("P")
R = TypeVar("R")

#: Table of a job file -> the argument of ``train``, the name of the type that holds the table's keys, and the keys.
_TABLES: dict[str, tuple[str, str, type[BaseModel]]] = {
    "optimizer": ("optimizer", "OptimizerSpec", OptimizerSpec),
    "schedule": ("lr_schedule", "ScheduleSpec", ScheduleSpec),
    "codec": ("codec", "CodecSpec", CodecSpec),
    "plan": ("planner", "PlanSpec", PlanSpec),
    "sync": ("sync", "SyncSpec", SyncSpec),
    "checkpoint": ("checkpoint", "CheckpointSpec", CheckpointSpec),
    "evaluate": ("evaluation", "Evaluation", EvaluateSpec),
    "limits": ("job", "LimitSpec", LimitSpec),
}
#: Keys that are arguments themselves.
_ARGUMENTS = {
    "optimizer.name": "optimizer",
    "optimizer.lr": "lr",
    "optimizer.clip_norm": "clip_norm",
    "schedule.name": "lr_schedule",
    "codec.name": "codec",
    "plan.planner": "planner",
    "plan.replicas": "replicas",
    "sync.strategy": "sync",
    "checkpoint.resume": "resume",
    "micro_batch_sizes": "micro_batches",
    "precision": "precision",
    "seed": "seed",
    "steps": "steps",
}
#: Keys outside of tables that ``train`` takes in a ``JobSpec``; a word of ordinary English counts only before `` = ``.
_TOP = ("on_nan", "on_loss", "virtual_replicas", "copy_every", "mtbf_hours", "recoveries", "copies")
_VALUE = r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|true|false|True|False|None|nan|-?inf|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_SETTING = re.compile(
    rf"(?<![\w.='\"-])(?:(?P<table>{'|'.join(_TABLES)})\.)?(?P<key>[a-z_]+)(?P<more>(?:\.\w+|\[\d+\])*)"
    rf"(?: = (?P<value>{_VALUE}))?(?![\w])"
)
_WHOLE_TABLE = re.compile(rf"\[({'|'.join(_TABLES)})\]")
#: Remedies of a job file that Python callers carry out on their module.
_PHRASES = {"load its exported weights with weights.source = 'file'": "load its exported weights into the module"}
#: Argument -> where its other name stands in a text (of ``epochs``, the remedy), and what follows the name.
_TWO_NAMES = {
    "accumulate": (re.compile(r"\bmicro_batches\b"), ""),
    "schedule": (re.compile(r"\blr_schedule\b"), ""),
    "evaluate": (re.compile(r"\bevaluation="), "="),
    "epochs": (re.compile(r"(?<=: set )steps above \d+$"), " that give more steps"),
}
_SAID = {"true": "True", "false": "False"}


def in_arguments(text: str) -> str:
    """``text`` with each setting of a job file spelled as ``train``'s argument: ``planner=PlanSpec(recompute="auto")``."""
    for phrase, said in _PHRASES.items():
        text = text.replace(phrase, said)
    return _WHOLE_TABLE.sub(lambda found: _TABLES[found[1]][0], _SETTING.sub(_spelled, text))


def in_typed_names(text: str, typed: Iterable[str]) -> str:
    """``text`` with those names of arguments that the caller ``typed``, where an argument has two names."""
    for name in typed:
        text = _TWO_NAMES[name][0].sub(name + _TWO_NAMES[name][1], text)
    return text


def _spelled(found: re.Match[str]) -> str:
    table, key, more, value = found["table"], found["key"], found["more"], found["value"]
    given = None if value is None else _SAID.get(value, value)
    if not table:
        inside = found.string[: found.start()].endswith("(")  # of a type that is spelled as Python already
        return found[0] if inside else _top_level(found[0], key, given)
    argument, kind, keys = _TABLES[table]
    if key not in keys.model_fields:
        return found[0]  # a file's name, or a field of something else
    path = f"{table}.{key}"
    if path in _ARGUMENTS and not more:
        return _ARGUMENTS[path] + ("" if given is None else f"={given}")
    shown = given or "..."
    if more.startswith("."):  # a key of a table inside: sync.settings.codec
        shown, more = f"{{{more[1:]!r}: {shown}}}", ""
    if more:  # an item of a list: optimizer.groups[0].match
        return f"{argument}={kind}({key}=...){more}" + ("" if given is None else f" = {given}")
    setting = f"{kind}({key}={shown})"
    return f"job=JobSpec(limits={setting})" if table == "limits" else f"{argument}={setting}"


def _top_level(text: str, key: str, given: str | None) -> str:
    if key in _ARGUMENTS and (given is not None or "_" in key):
        return _ARGUMENTS[key] + ("" if given is None else f"={given}")
    if key in _TOP and (given is not None or "_" in key):
        return f"job=JobSpec({key}={given or '...'})"
    return text


def known_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with a ``TypeError`` that names the close arguments, where a caller misspells one."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def called(*args: P.args, **given: P.kwargs) -> R:
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known).rstrip() or f"see help(farflung.{function.__name__})"
                raise TypeError(f"{function.__name__}() has no argument {name!r}: {hint}")
        return function(*args, **given)

    return called


def warn_if_stretched(job: JobSpec, before: int) -> None:
    """Warn the caller of ``train`` where ``job`` continues a run of ``before`` steps under other learning rates."""
    change = stretched(job.schedule.name, before, job.steps)
    if change:
        warnings.warn(
            f"resume={job.checkpoint.resume!r}: {change}, so the weights are not those of one run of {job.steps} steps; "
            "for these, give the final number of steps from the start and end early with StopTraining",
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """The ``stacklevel`` of the first frame outside of this package, for the function that calls this one."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("farflung."):
        level, frame = level + 1, frame.f_back
    return level
