"""From the caller's optimizer, or the name in a job, to the rules that a job carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farflung.errors import CaptureError, InputError
from farflung.foreign_code import first_line
from farflung.graph.ir import Graph, TensorSpec
from farflung.job import JobSpec, rates
from farflung.job.groups import group_of
from farflung.job.optimizer_names import CAPTURED
from farflung.job.spec import GroupSpec, OptimizerSpec
from farflung.optim import Rule, needs_rules, write_rules

if TYPE_CHECKING:
    import torch
    from torch import nn

    from farflung.frontends.optimizers.capture import Trained

__all__ = ["with_named_rules", "with_optimizer"]


_WRONG, _RETURN = "optimizer: the function gave", "return a torch.optim.Optimizer, or a list of them"


def with_named_rules(job: JobSpec, graph: Graph) -> JobSpec:
    """``job`` with the rules of its named optimizers, if it needs any.

    Raises:
        InputError: an optimizer has no such setting.
        CaptureError: an optimizer can't become rules.
    """
    spec = job.optimizer
    if spec.rules or not needs_rules(spec):
        return job
    import torch

    from farflung.frontends.optimizers.capture import Trained
    from farflung.frontends.optimizers.named import named_optimizer

    members: dict[int, list[str]] = {}
    for name in graph.state:
        if name in graph.trained:
            members.setdefault(group_of(spec, name), []).append(name)
    trained: list[Trained] = []
    for index, names in members.items():
        group = spec.groups[index] if index < len(spec.groups) else None
        specs = [graph.state[name].spec for name in names]
        stand_ins = [torch.nn.Parameter(torch.empty(s.shape, dtype=getattr(torch, s.dtype), device="meta")) for s in specs]
        optimizer = named_optimizer(spec, group, stand_ins)
        settings = optimizer.param_groups[0]
        trained += [
            Trained(group=index, optimizer=optimizer, settings=settings, dtype=p.dtype, shape=tuple(p.shape)) for p in stand_ins
        ]
    return job.model_copy(update={"optimizer": spec.model_copy(update={"rules": _rules(job, spec, trained)})})


def _rules(job: JobSpec, spec: OptimizerSpec, trained: Sequence[Trained]) -> str:
    """The rules of ``trained`` for all steps of ``job`` with the optimizer ``spec``, checked against the optimizers."""
    from farflung.api.optimizer_check import check_rules
    from farflung.engines.torch.update_programs import Missing, missing_program
    from farflung.frontends.optimizers.capture import capture_rules

    whole, groups = job.model_copy(update={"optimizer": spec}), len(spec.groups) + 1

    def missing(rule: Rule, item: Trained) -> Missing | None:
        declared = TensorSpec(dtype=str(item.dtype).removeprefix("torch."), shape=item.shape)
        return missing_program(rule, declared, (rates(whole, step)[item.group :: groups] for step in range(job.steps)))

    check_rules(trained)
    return write_rules(capture_rules(trained, missing=missing))


def with_optimizer(job: JobSpec, given: Any, module: nn.Module, graph: Graph) -> JobSpec:
    """``job`` with the optimizer that the caller gave to ``train``, if it is none that a job can name.

    Raises:
        InputError: it is no optimizer, or does not fit the module.
        CaptureError: it can't become rules.
    """
    if isinstance(given, (str, OptimizerSpec)):
        return job
    optimizer = _captured(job, _made(given, module), module, graph)
    return job.model_copy(update={"optimizer": optimizer})


def _made(factory: Any, module: nn.Module) -> tuple[torch.optim.Optimizer, ...]:
    """What the caller's ``factory`` makes of the module's parameters, or the optimizer itself that the caller gave.

    Raises:
        InputError: the factory fails, or gives no optimizer.
    """
    import torch

    found = factory
    if not isinstance(factory, torch.optim.Optimizer) and callable(factory):
        try:
            found = factory(list(module.parameters()))
        except Exception as error:  # the factory is foreign code
            raise InputError(f"optimizer: the function failed: {type(error).__name__}: {first_line(error)}") from error
    items = tuple(found) if isinstance(found, (list, tuple)) else (found,)
    for item in items:
        if not isinstance(item, torch.optim.Optimizer):
            raise InputError(f"{_WRONG} a {type(item).__name__}: {_RETURN}")
        if item.state:
            raise InputError(f"optimizer={type(item).__name__} has made steps already: pass a function that makes a new one")
    if not items:
        raise InputError(f"{_WRONG} no optimizer: {_RETURN}")
    return items


def _captured(job: JobSpec, optimizers: Sequence[torch.optim.Optimizer], module: nn.Module, graph: Graph) -> OptimizerSpec:
    """The optimizers of the parameters of ``module`` as a part of a job; parameters without an optimizer are frozen.

    Raises:
        InputError: an optimizer holds a tensor that is no parameter of the module, or two hold the same.
        CaptureError: an optimizer can't become rules.
    """
    from farflung.frontends.optimizers.capture import Trained, initial_states
    from farflung.frontends.optimizers.named import name_of

    owners, parameters = list(_owners(optimizers, module, graph)), dict(module.named_parameters())
    if not owners:
        raise InputError("optimizer: it holds no parameter that gets a gradient: give it the module's parameters")
    taken = {name for names, _, _ in owners for name in names}
    default = max(range(len(owners)), key=lambda index: len(owners[index][0]))
    groups = [GroupSpec(names=names, lr=float(settings["lr"])) for i, (names, _, settings) in enumerate(owners) if i != default]
    rest = tuple(name for name in graph.state if name in graph.trained and name not in taken)
    if rest:
        groups.append(GroupSpec(names=rest, frozen=True))
    trained, number = [], 0
    for index, (names, optimizer, settings) in enumerate(owners):
        own = len(groups) if index == default else number
        number += index != default
        for name in names:
            declared = graph.state[name].spec
            kind = _dtype(declared.dtype)
            parameter = parameters[name]
            initial = initial_states(optimizer.state.get(parameter, {}), declared.shape)
            if initial is None:
                raise InputError(
                    f"optimizer={type(optimizer).__name__} has made steps already: pass a function that makes a new one"
                )
            trained.append(
                Trained(group=own, optimizer=optimizer, settings=settings, dtype=kind, shape=declared.shape, initial=initial)
            )
    kinds = {name_of(item) for item in optimizers}
    spec = job.optimizer.model_copy(
        update={
            "name": kinds.pop() if len(kinds) == 1 else CAPTURED,
            "lr": float(owners[default][2]["lr"]),
            "groups": tuple(groups),
        }
    )
    return spec.model_copy(update={"rules": _rules(job, spec, trained)})


def _dtype(name: str) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, name)
    return found


def _owners(
    optimizers: Iterable[torch.optim.Optimizer], module: nn.Module, graph: Graph
) -> Iterable[tuple[tuple[str, ...], torch.optim.Optimizer, Mapping[str, Any]]]:
    """The trained parameters of each group of each optimizer, by their names in the graph."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    seen: set[str] = set()
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        for settings in optimizer.param_groups:
            for parameter in settings["params"]:
                if id(parameter) not in names:
                    raise InputError(
                        f"optimizer {kind} holds a tensor {list(parameter.shape)} that is no parameter of the module: make it "
                        "from the parameters that the function is given"
                    )
            own = tuple(name for parameter in settings["params"] if (name := names[id(parameter)]) in graph.trained)
            twice = seen.intersection(own)
            if twice:
                raise InputError(f"parameter {min(twice)!r} is in two groups of optimizers: leave it in one")
            seen.update(own)
            if "lr" not in settings:
                raise CaptureError(f"optimizer {kind} can't be captured: its groups have no 'lr', which schedules set")
            if own:
                yield own, optimizer, settings
