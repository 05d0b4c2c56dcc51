"""From the caller's optimizer and schedule, or the names in a job, to the rules and values that a job carries.

A job names its optimizer and schedule where engines know them. Whatever else the caller has is evaluated here: optimizers become
rules, schedules become values of each step and group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farflung.errors import CaptureError, InputError
from farflung.foreign_code import first_line
from farflung.graph.ir import Graph, TensorSpec
from farflung.job import JobSpec, check_job, rates
from farflung.job.groups import group_of
from farflung.job.optimizer_names import CAPTURED
from farflung.job.rates import curve_factor, scheduled
from farflung.job.spec import GroupSpec, OptimizerSpec
from farflung.job.value_tables import write_values
from farflung.optim import Rule, needs_rules, updated_dtype, write_rules

if TYPE_CHECKING:
    import torch
    from torch import nn

    from farflung.frontends.optimizers.capture import Trained

__all__ = ["Given", "with_given_optimizer", "with_named_optimizer"]

_WRONG, _RETURN = "optimizer: the function gave", "return a torch.optim.Optimizer, or a list of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a caller passed to ``train``: an optimizer (None: the job names it) and a schedule (None: the job names it)."""

    optimizer: Any = None
    schedule: Callable[[Any], Any] | None = None


def with_given_optimizer(job: JobSpec, given: Given, module: nn.Module, graph: Graph) -> JobSpec:
    """``job`` with the optimizer that the caller passed; parameters without an optimizer are frozen.

    Raises:
        InputError: it is no optimizer, or does not fit the module.
        CaptureError: it can't become rules, or its schedule can't become values.
    """
    if given.optimizer is None:
        return job
    spec, trained = _of_caller(job.optimizer, _made(given.optimizer, module), module, graph)
    return _complete(job.model_copy(update={"optimizer": spec}), trained, given.schedule, rules=True)


def with_named_optimizer(job: JobSpec, graph: Graph, schedule: Callable[[Any], Any] | None = None) -> JobSpec:
    """``job`` with the rules and values of its named optimizers and schedules, if engines do not know these.

    Raises:
        InputError: an optimizer has no such setting.
        CaptureError: an optimizer can't become rules, or its schedule can't become values.
    """
    spec = job.optimizer
    rules = needs_rules(spec) or len(scheduled(job)) > 1
    if spec.rules or not (rules or schedule is not None):
        return job
    return _complete(job, _of_names(spec, graph), schedule, rules=rules)


def _complete(job: JobSpec, trained: Sequence[Trained], schedule: Callable[[Any], Any] | None, *, rules: bool) -> JobSpec:
    """``job`` with the values of its schedules and, if it needs them, the rules of its optimizers."""
    job = _with_values(job, trained, schedule)
    if rules or len(scheduled(job)) > 1:
        job = job.model_copy(update={"optimizer": job.optimizer.model_copy(update={"rules": _rules(job, trained)})})
    check_job(job)
    return job


def _with_values(job: JobSpec, trained: Sequence[Trained], schedule: Callable[[Any], Any] | None) -> JobSpec:
    from farflung.frontends.optimizers.capture import setting_of
    from farflung.frontends.optimizers.schedules import scheduled_values

    samples = {item.group: item for item in trained}
    groups = [samples.get(index) for index in range(len(job.optimizer.groups) + 1)]
    changed: dict[str, Any] = {}
    values: dict[str, str] = {}
    if schedule is not None:
        changed["name"] = "values"
        for item in scheduled_values(schedule, groups, job.steps):
            values[item.name] = write_values([value for row in item.rows for value in row])
    for name in scheduled(job)[1:]:
        curve = getattr(job.schedule, name)
        base = [0.0 if item is None else setting_of(item.settings, name) for item in groups]
        if not any(base):
            raise InputError(f"schedule.{name} has nothing to change: no optimizer has a {name} above 0; set one, or remove it")
        factors = (curve_factor(curve, step, job.steps) for step in range(job.steps))
        values[name] = write_values([value * factor for factor in factors for value in base])
    return job.model_copy(update={"schedule": job.schedule.model_copy(update={**changed, "values": values})})


def _rules(job: JobSpec, trained: Sequence[Trained]) -> str:
    """The rules of ``trained`` for all steps of ``job``, checked against the optimizers."""
    from farflung.api.optimizers.check import check_rules
    from farflung.engines.torch.optimizers.update_programs import Missing, missing_program
    from farflung.frontends.optimizers.capture import capture_rules

    groups = len(job.optimizer.groups) + 1

    def missing(rule: Rule, item: Trained) -> Missing | None:
        declared = TensorSpec(dtype=str(item.dtype).removeprefix("torch."), shape=item.shape)
        return missing_program(rule, declared, (rates(job, step)[item.group :: groups] for step in range(job.steps)))

    settings = scheduled(job)
    check_rules(trained, settings)
    return write_rules(capture_rules(trained, settings, missing))


def _of_names(spec: OptimizerSpec, graph: Graph) -> list[Trained]:
    """Stand-ins for the parameters of each group, with the optimizer that the job names for it."""
    import torch

    from farflung.frontends.optimizers.capture import Trained
    from farflung.frontends.optimizers.named_optimizers import named_optimizer

    members: dict[int, list[TensorSpec]] = {}
    for name, state in graph.state.items():
        if name in graph.trained:
            members.setdefault(group_of(spec, name), []).append(state.spec)
    found: list[Trained] = []
    for index, specs in members.items():
        group = spec.groups[index] if index < len(spec.groups) else None
        shaped = [torch.empty(s.shape, dtype=getattr(torch, updated_dtype(spec, s.dtype)), device="meta") for s in specs]
        stand_ins = [torch.nn.Parameter(one) for one in shaped]
        optimizer = named_optimizer(spec, group, stand_ins)
        settings = optimizer.param_groups[0]
        for item in stand_ins:
            shape = tuple(item.shape)
            found.append(
                Trained(group=index, optimizer=optimizer, settings=settings, dtype=item.dtype, shape=shape, parameter=item)
            )
    return found


def _made(given: Any, module: nn.Module) -> tuple[torch.optim.Optimizer, ...]:
    """What the caller's function makes of the module's parameters, or the optimizer itself that the caller gave.

    Raises:
        InputError: the function fails, or gives no optimizer.
    """
    import torch

    found = given
    if not isinstance(given, torch.optim.Optimizer) and callable(given):
        try:
            found = given(list(module.parameters()))
        except Exception as error:  # foreign code
            raise InputError(f"optimizer: the function failed: {type(error).__name__}: {first_line(error)}") from error
    items = tuple(found) if isinstance(found, (list, tuple)) else (found,)
    for item in items:
        if not isinstance(item, torch.optim.Optimizer):
            raise InputError(f"{_WRONG} a {type(item).__name__}: {_RETURN}")
    if not items:
        raise InputError(f"{_WRONG} no optimizer: {_RETURN}")
    return items


#: Names of parameters, with the optimizer and the group of it that they belong to.
_Owner = tuple[tuple[str, ...], "torch.optim.Optimizer", Mapping[str, Any]]


def _of_caller(
    spec: OptimizerSpec, optimizers: Sequence[torch.optim.Optimizer], module: nn.Module, graph: Graph
) -> tuple[OptimizerSpec, list[Trained]]:
    """The caller's optimizers as groups of the job; the largest group is the default."""
    from farflung.frontends.optimizers.named_optimizers import name_of

    owners = list(_owners(optimizers, module, graph))
    if not owners:
        raise InputError("optimizer: it holds no parameter that gets a gradient: give it the module's parameters")
    owners.sort(key=lambda owner: len(owner[0]))  # stable: equal groups keep their order
    groups = [GroupSpec(names=names, lr=float(settings["lr"])) for names, _, settings in owners[:-1]]
    taken = {name for names, _, _ in owners for name in names}
    rest = tuple(name for name in graph.state if name in graph.trained and name not in taken)
    if rest:
        groups.append(GroupSpec(names=rest, frozen=True))
    places = [*range(len(owners) - 1), len(groups)]
    kinds = {name_of(item) for item in optimizers}
    changes = {"name": kinds.pop() if len(kinds) == 1 else CAPTURED, "lr": float(owners[-1][2]["lr"]), "groups": tuple(groups)}
    parameters = dict(module.named_parameters())
    trained = [item for place, owner in zip(places, owners, strict=True) for item in _trained(place, owner, parameters, graph)]
    return spec.model_copy(update=changes), trained


def _trained(group: int, owner: _Owner, parameters: Mapping[str, torch.Tensor], graph: Graph) -> Iterable[Trained]:
    import torch

    from farflung.frontends.optimizers.capture import Trained, initial_states

    names, optimizer, settings = owner
    for name in names:
        declared = graph.state[name].spec
        initial = initial_states(optimizer.state.get(parameters[name], {}), declared.shape)
        if initial is None:
            kind = type(optimizer).__name__
            raise InputError(f"optimizer={kind} has made steps already: pass a function that makes a new one")
        yield Trained(
            group=group,
            optimizer=optimizer,
            settings=settings,
            dtype=getattr(torch, declared.dtype),
            shape=declared.shape,
            initial=initial,
            parameter=parameters[name],
        )


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _owners(optimizers: Iterable[torch.optim.Optimizer], module: nn.Module, graph: Graph) -> Iterable[_Owner]:
    """The trained parameters of each group of each optimizer, by their names in the graph."""
    import torch

    names = {id(parameter): name for name, parameter in module.named_parameters()}
    seen: set[str] = set()
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        for settings in optimizer.param_groups:
            for parameter in settings["params"]:
                if id(parameter) not in names:
                    raise InputError(
                        f"optimizer {kind} holds a tensor {list(parameter.shape)} that is no parameter of the module: make it "
                        "from the parameters of the module that train gets, or pass a function of the parameters"
                    )
            own = tuple(name for parameter in settings["params"] if (name := names[id(parameter)]) in graph.trained)
            if twice := seen.intersection(own):
                raise InputError(f"parameter {min(twice)!r} is in two groups of optimizers: leave it in one")
            seen.update(own)
            if "lr" not in settings:
                raise CaptureError(f"optimizer {kind} can't be captured: its groups have no 'lr', which schedules set")
            for name in ("lr", "betas", "momentum", "weight_decay"):
                if any(isinstance(value, torch.Tensor) for value in _items(settings.get(name))):
                    raise InputError(f"optimizer {kind} has a tensor as {name}, which rounds otherwise: pass a Python number")
            if own:
                yield own, optimizer, settings
