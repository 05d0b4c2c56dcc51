"""The judge: a plain PyTorch training loop that adds in the job's order.

The module is called normally and autograd is left alone. Three things make its sums those of a job, wherever the job runs:

- Each use of a parameter gets a leaf of its own, which accumulates over micro-batches; the uses of a parameter are then added,
  the last use first. For a parameter with one use, and for a step of one micro-batch, this is what every loop does.
- With ``virtual_ends`` the micro-batches of each virtual replica accumulate first; these sums are then added in order.
- Random numbers come from the public context ``keyed_randomness``.
- Clipping stacks the norms of the gradients in the module's order.
- With ``precision="fp16"`` the loss is scaled by ``torch.amp.GradScaler``. A step that overflows leaves no trace in any state.
- With ``optimizer.delayed`` the gradients of a step are applied when the next one's are there, those of the last step at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from farflung.errors import InputError
from farflung.ids import derive_seed
from farflung.job.spec import GroupSpec, LossScaleSpec, OptimizerSpec

if TYPE_CHECKING:
    import torch

__all__ = ["PlainResult", "PlainSettings", "plain_loop"]

Array = NDArray[Any]

_NO_OPTIMIZER = "optimizer: pass an OptimizerSpec, an optimizer, or a function that returns one or several"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSettings:
    """What a plain loop takes from a job.

    ``weights``: the factor of each micro-batch (None: the plain mean). ``rates``: learning rates of a step, one per group of
    the optimizer and then the default (None: as the optimizer says). ``virtual_ends``: where each virtual replica's
    micro-batches end (``JobSpec.virtual_ends``; empty: each micro-batch is one, the order of any loop). ``optimizer``: any
    that ``train`` takes; a function gets the module's parameters.
    """

    optimizer: OptimizerSpec | str | torch.optim.Optimizer | Callable[[list[torch.nn.Parameter]], Any] = field(
        default_factory=OptimizerSpec
    )
    seed: int = 0
    weights: Sequence[float] | None = None
    rates: Callable[[int], Sequence[float]] | None = None
    precision: str = "float32"
    loss_scale: LossScaleSpec = field(default_factory=LossScaleSpec)
    virtual_ends: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainResult:
    """``losses``: the weighted mean of each step. ``micro_losses[step][micro_batch]``. ``gradients``: of the last step,
    before clipping. ``states``: parameters and persistent buffers at the end, by first name."""

    losses: tuple[float, ...]
    micro_losses: tuple[tuple[float, ...], ...]
    gradients: Mapping[str, Array]
    states: Mapping[str, Array]


def plain_loop(
    module: torch.nn.Module,
    batch_fn: Callable[[int, int], Any],
    *,
    steps: int,
    micro_batches: int,
    settings: PlainSettings | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
) -> PlainResult:
    """Train ``module`` in place for ``steps``: ``module(*batch_fn(step, micro_batch))`` (a mapping: by keyword) is the scalar
    loss, or an object whose ``loss`` or first item is. ``loss``: as for ``train``, a function of outputs and target.

    Raises:
        InputError: the batch has no target for ``loss``, the number of weights is not that of the micro-batches, nothing can be
            trained, or the optimizer is unknown.
    """
    import torch

    from farflung.engines.torch.keys import keyed_randomness
    from farflung.frontends.caller.objective import Objective

    called: Any = module if loss is None else Objective.of(loss, None).around(module, batch_fn(0, 0))
    settings = settings or PlainSettings()
    weights = settings.weights if settings.weights is not None else [1.0 / micro_batches] * micro_batches
    if len(weights) != micro_batches:
        raise InputError(f"{len(weights)} weights for {micro_batches} micro-batches")
    parameters = dict(module.named_parameters())
    given = settings.optimizer
    named = OptimizerSpec.model_validate({"name": given}) if isinstance(given, str) else given
    spec = named if isinstance(named, OptimizerSpec) else OptimizerSpec()
    made = [] if named is spec else _made(named, module)
    trained = _trained(parameters, spec, made)
    wide = _wide(spec, trained)
    update = _Update(made or _optimizers(spec, {**trained, **wide}), trained, spec, settings.rates)
    update.widen(wide, settings.seed)
    scaler = _scaler(settings)
    keys = keyed_randomness(settings.seed)
    micro_losses: list[tuple[float, ...]] = []
    gradients: dict[str, Array] = {}
    waiting: Mapping[str, torch.Tensor | None] = {}
    for step in range(steps):
        uses = _Leaves(trained)
        found, before = [], {name: buffer.clone() for name, buffer in module.named_buffers()}
        for index in range(micro_batches):
            uses.restart()
            batch = batch_fn(step, index)
            with keys.micro_batch(step, index):
                value = _call(called, batch, uses, settings.precision)
            torch.autograd.backward(scaler.scale(value * weights[index]))
            found.append(float(value.detach()))
            if index + 1 in settings.virtual_ends:
                uses.close_part()
        uses.finish()
        micro_losses.append(tuple(found))
        finite = not scaler.is_enabled() or update.unscale(scaler)
        if step == steps - 1:
            gradients = {name: _array(p.grad) for name, p in trained.items() if p.grad is not None}
        if not finite:
            _restore(module, before)
            _put(trained, {})
            continue
        if not spec.delayed:
            update(step)
            continue
        late, waiting = waiting, {name: p.grad for name, p in trained.items()}
        if step:  # this step's gradients wait for the next one's end
            _put(trained, late)
            update(step - 1)
        _put(trained, {})
    if waiting:
        _put(trained, waiting)
        update(steps - 1)
    losses = tuple(_mean(found, weights) for found in micro_losses)
    return PlainResult(losses=losses, micro_losses=tuple(micro_losses), gradients=gradients, states=_states(module))


def _scaler(settings: PlainSettings) -> torch.amp.GradScaler:
    """The scaler of the job, which does nothing except with float16."""
    import torch

    given = settings.loss_scale
    return torch.amp.GradScaler(
        "cpu",
        init_scale=given.initial,
        growth_factor=given.growth,
        backoff_factor=given.backoff,
        growth_interval=given.every,
        enabled=settings.precision == "fp16",
    )


def _restore(module: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> None:
    for name, buffer in module.named_buffers():
        buffer.copy_(before[name])


def _put(trained: Mapping[str, torch.nn.Parameter], gradients: Mapping[str, torch.Tensor | None]) -> None:
    for name, parameter in trained.items():
        parameter.grad = gradients.get(name)


def _mean(losses: Sequence[float], weights: Sequence[float]) -> float:
    total = 0.0
    for loss, weight in zip(losses, weights, strict=True):
        total += loss * weight
    return total


def _array(tensor: torch.Tensor) -> Array:
    from farflung.engines.torch.arrays import to_array

    return to_array(tensor.detach().cpu(), copy=True)


def _states(module: torch.nn.Module) -> dict[str, Array]:
    import torch

    first = {id(tensor): name for name, tensor in reversed([*module.state_dict(keep_vars=True).items()])}
    tensors = {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if isinstance(tensor, torch.Tensor)}
    return {name: _array(tensor) for name, tensor in tensors.items() if first[id(tensor)] == name}


def _trained(
    parameters: Mapping[str, torch.nn.Parameter], spec: OptimizerSpec, made: Sequence[torch.optim.Optimizer]
) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained: of optimizers that the caller ``made``, those that they hold."""
    held = {id(parameter) for optimizer in made for group in optimizer.param_groups for parameter in group["params"]}
    found = {}
    for name, parameter in parameters.items():
        group = spec.groups[index] if (index := _group(spec, name)) < len(spec.groups) else None
        frozen = (group is not None and group.frozen) or (bool(made) and id(parameter) not in held)
        parameter.requires_grad_(parameter.requires_grad and not frozen)
        if parameter.requires_grad:
            found[name] = parameter
    if not found:
        raise InputError("the module has no parameter to train: all are frozen")
    return found


def _group(spec: OptimizerSpec, name: str) -> int:
    import re

    def fits(group: GroupSpec) -> bool:
        return name in group.names if group.names else re.search(group.match, name) is not None

    return next((index for index, group in enumerate(spec.groups) if fits(group)), len(spec.groups))


def _made(given: Any, module: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizer that the caller gave, or those that the caller's function makes."""
    import torch

    found = given(list(module.parameters())) if callable(given) and not isinstance(given, torch.optim.Optimizer) else given
    items = list(found) if isinstance(found, (list, tuple)) else [found]
    if not items or not all(isinstance(item, torch.optim.Optimizer) for item in items):
        raise InputError(_NO_OPTIMIZER)
    return items


def _optimizers(spec: OptimizerSpec, trained: Mapping[str, torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
    """One optimizer for each group that has parameters, the default last."""
    import torch

    from farflung.frontends.optimizers.named_optimizers import CLASSES, named_optimizer

    if spec.name not in CLASSES:  # a captured one: its rules are what this loop judges
        raise InputError(_NO_OPTIMIZER)
    members: list[list[torch.nn.Parameter]] = [[] for _ in range(len(spec.groups) + 1)]
    for name, parameter in trained.items():
        members[_group(spec, name)].append(parameter)
    empty = torch.nn.Parameter(torch.empty(1, 1))  # has no gradient; a rate belongs to each group, also to an empty one
    return [named_optimizer(spec, group, own or [empty]) for group, own in zip([*spec.groups, None], members, strict=True)]


class _Update:
    """Clips, sets the learning rates and lets the optimizers step."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        trained: Mapping[str, torch.nn.Parameter],
        spec: OptimizerSpec,
        rates: Callable[[int], Sequence[float]] | None,
    ) -> None:
        self._optimizers, self._trained, self._spec, self._rates = optimizers, trained, spec, rates
        self._wide: Mapping[str, torch.nn.Parameter] = {}
        self._seed, self._counts = 0, Counter[str]()

    def unscale(self, scaler: torch.amp.GradScaler) -> bool:
        """Remove the scale from the gradients and adapt it; return whether all gradients are finite."""
        import torch

        for optimizer in self._optimizers:
            if any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]):
                scaler.unscale_(optimizer)
        scaler.update()
        grads = [parameter.grad for parameter in self._trained.values() if parameter.grad is not None]
        return all(bool(torch.isfinite(grad).all()) for grad in grads)

    def __call__(self, step: int) -> None:
        import torch

        if self._spec.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(self._trained.values()), self._spec.clip_norm, foreach=False)
        if self._rates is not None:
            groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
            for group, rate in zip(groups, self._rates(step), strict=True):
                group["lr"] = rate
        for name, parameter in self._wide.items():
            parameter.grad = None if (grad := self._trained[name].grad) is None else grad.float()
        for optimizer in self._optimizers:
            optimizer.step()
            if self._spec.state == "bf16":
                _round(optimizer)
        self._narrow()
        for parameter in self._trained.values():
            parameter.grad = None

    def widen(self, wide: Mapping[str, torch.nn.Parameter], seed: int) -> None:
        """The optimizers have ``wide`` in place of some of the module's parameters."""
        self._wide, self._seed = wide, seed

    def _narrow(self) -> None:
        """Give the module's parameters the values of their float32 copies."""
        import torch

        from farflung.engines.torch.optimizers.wide_update import rounded

        with torch.no_grad():
            for name, wide in self._wide.items():
                if wide.grad is None:
                    continue
                if self._spec.update == "stochastic":
                    wide.copy_(rounded(wide, derive_seed("rounding", self._seed, name, self._counts[name])))
                    self._counts[name] += 1
                self._trained[name].copy_(wide)


def _wide(spec: OptimizerSpec, trained: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.nn.Parameter]:
    """Float32 copies of the parameters that ``spec.update`` is for."""
    import torch

    narrow = (torch.bfloat16, torch.float16) if spec.update != "plain" else ()
    return {name: torch.nn.Parameter(p.detach().float()) for name, p in trained.items() if p.dtype in narrow}


def _round(optimizer: torch.optim.Optimizer) -> None:
    """Round the states as a job with ``state = "bf16"`` stores them."""
    import torch

    for slots in optimizer.state.values():
        for key, value in slots.items():
            if isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.numel() > 1:
                slots[key] = value.bfloat16().float()


def _call(module: torch.nn.Module, batch: Any, uses: _Leaves, precision: str) -> torch.Tensor:
    import torch

    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    with _mode(uses), _functions(uses), nullcontext() if narrow is None else torch.autocast("cpu", narrow):
        result = module(**batch) if isinstance(batch, Mapping) else module(*batch)
    if isinstance(result, torch.Tensor):
        return result
    loss: torch.Tensor = result.loss if hasattr(result, "loss") else result["loss"] if isinstance(result, Mapping) else result[0]
    return loss


class _Leaves:
    """One leaf for each time that a parameter is taken, the same ones in every micro-batch of a step."""

    def __init__(self, trained: Mapping[str, torch.nn.Parameter]) -> None:
        self._parameters = {id(parameter): parameter for parameter in trained.values()}
        self._leaves: dict[int, list[torch.Tensor]] = {key: [] for key in self._parameters}
        self._taken: dict[int, int] = {}
        self._parts: dict[torch.Tensor, torch.Tensor] = {}

    def restart(self) -> None:
        """Count from the first use again."""
        self._taken = dict.fromkeys(self._parameters, 0)

    def swap(self, item: Any, chosen: dict[int, Any]) -> Any:
        """The next leaf of a trained parameter (one per function call: ``chosen``); anything else as it is."""
        key = id(item)
        if key not in self._parameters:
            return item
        if key not in chosen:
            leaves, number = self._leaves[key], self._taken[key]
            self._taken[key] = number + 1
            if number == len(leaves):
                leaves.append(item.detach().requires_grad_())
            chosen[key] = leaves[number]
        return chosen[key]

    def close_part(self) -> None:
        """End a virtual replica: what the leaves accumulated is added to the sums of those before it."""
        for leaf in (leaf for leaves in self._leaves.values() for leaf in leaves):
            if leaf.grad is not None:
                self._parts[leaf] = self._parts[leaf] + leaf.grad if leaf in self._parts else leaf.grad
            leaf.grad = None

    def finish(self) -> None:
        """Give each parameter the sum of its uses, the last use first."""
        for leaf, part in self._parts.items():
            leaf.grad = part
        for key, parameter in self._parameters.items():
            total: torch.Tensor | None = None
            for leaf in reversed(self._leaves[key]):
                if leaf.grad is not None:
                    total = leaf.grad if total is None else total + leaf.grad
            parameter.grad = total


def _mode(leaves: _Leaves) -> Any:
    """A mode in which the n-th function that takes a parameter takes its n-th leaf instead."""
    from torch import Size
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map

    def is_size(item: Any) -> bool:
        return isinstance(item, Size)  # stays one: ``Tensor.new`` takes a plain tuple for values

    class Uses(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            chosen: dict[int, Any] = {}
            args, kwargs = tree_map(lambda item: leaves.swap(item, chosen), (args, kwargs or {}), is_leaf=is_size)
            return func(*args, **kwargs)

    return Uses()


def _functions(leaves: _Leaves) -> Any:
    """A context in which custom functions take leaves as well: no mode sees ``Function.apply``."""
    from unittest.mock import patch

    import torch
    from torch.autograd import Function
    from torch.utils._pytree import tree_map

    from farflung.frontends.torch.functions import original_apply

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        chosen: dict[int, Any] = {}
        with torch._C.DisableTorchFunction():  # making a leaf is no use of the parameter
            args, kwargs = tree_map(lambda item: leaves.swap(item, chosen), (args, kwargs))
        return original_apply(cls)(*args, **kwargs)

    return patch.object(Function, "apply", classmethod(apply))
