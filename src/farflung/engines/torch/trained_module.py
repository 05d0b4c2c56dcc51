"""Trained states as tensors, and inside modules of the caller.

Training never touches the caller's module. These functions turn its result back into tensors, load the tensors into a module,
and make a new module that holds them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import torch
from torch import nn

from farflung.engines.base import Array
from farflung.engines.torch.arrays import from_array
from farflung.engines.torch.initialize import initial_value
from farflung.errors import GraphError, InputError
from farflung.foreign_code import translated
from farflung.graph.ir import Graph, StateKind

__all__ = ["load_states", "new_module", "state_tensors"]

_CPU = torch.device("cpu")
#: How many names an error lists.
_SHOWN = 3


#: State -> its further names in the module.
Aliases = Mapping[str, Sequence[str]]


def state_tensors(aliases: Aliases, states: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Copy ``states`` to CPU tensors, by every name that they have in the module; tied names share one tensor."""
    found: dict[str, torch.Tensor] = {}
    for name, others in aliases.items():
        if name in states:
            found |= dict.fromkeys((name, *others), from_array(states[name], _CPU))
    return found


def load_states(module: nn.Module, aliases: Aliases, states: Mapping[str, Array], *, strict: bool = True) -> None:
    """Copy ``states`` into the parameters and buffers of ``module``, in place. Nothing is written if something does not fit.

    Device and element type of the module's tensors stay. With ``strict`` the module and the training must have the same
    parameters and persistent buffers. Shapes must agree without it, too. States that training never reads keep the module's
    values.

    Raises:
        InputError: names or shapes differ, or a tensor of the module has no memory (meta device). The text lists them.
            Or ``module`` is no module.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"load_into takes a torch.nn.Module, got a {type(module).__name__}: pass a module of the trained class")
    given = state_tensors(aliases, states)
    held = _tensors(module)
    read = {name for state, others in aliases.items() for name in (state, *others)}
    if strict:
        _check_names(set(given), set(held), read, set(module.state_dict(keep_vars=True)))
    shared = given.keys() & held.keys()
    wrong = [
        f"{name!r} is {list(held[name].shape)} in the module and {list(given[name].shape)} in the result"
        for name in sorted(shared)
        if held[name].shape != given[name].shape
    ]
    if wrong:
        raise InputError(
            f"the result does not fit this module: {_listed(wrong)}. Shapes must agree, also with strict=False: pass a module "
            "with the trained module's settings, or copy what fits from result.tensors() yourself"
        )
    empty = [repr(name) for name in sorted(shared) if held[name].is_meta]
    if empty:
        raise InputError(
            f"the module has no memory for {_listed(empty)} (meta device): call module.to_empty(device='cpu') first, or use "
            "result.model()"
        )
    with torch.no_grad():
        for name in shared:
            held[name].copy_(given[name])


def _uncopied(name: str, error: Exception) -> InputError:
    return InputError(
        f"{name} can't be copied ({type(error).__name__}: {str(error).splitlines()[0]:.100}): make a "
        "module yourself and call result.load_into(module)"
    )


def new_module(
    source: nn.Module | Callable[[], nn.Module], graph: Graph, states: Mapping[str, Array], seed: int = 0
) -> nn.Module:
    """Make a module like ``source`` (a copy of a module, or a new one from a factory) that holds ``states``.

    Tied parameters stay tied. Tensors on the meta device get memory on the CPU. Those that training does not return get the
    values of their recorded initializers under ``seed``.

    Raises:
        InputError: the module can't be copied, or the factory gives a module that does not fit.
    """
    if isinstance(source, nn.Module):
        with translated(partial(_uncopied, type(source).__name__)):  # hooks and attributes of the module may refuse a copy
            module = copy.deepcopy(source)
    else:
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers go on as if the factory had not run
            module = source()
    _materialize(module, graph, states, seed)
    load_states(module, {state.name: state.aliases for state in graph.states}, states)
    return module


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers, by every name."""
    parameters = module.named_parameters(remove_duplicate=False)
    return dict(chain(parameters, module.named_buffers(remove_duplicate=False)))


def _check_names(given: set[str], held: set[str], read: set[str], persistent: set[str]) -> None:
    lacking = sorted(given - held)
    unknown = sorted((persistent & held) - given - read)
    problems = [f"the module lacks {_listed([repr(name) for name in lacking])}"] if lacking else []
    problems += [f"the result lacks {_listed([repr(name) for name in unknown])}"] if unknown else []
    if problems:
        raise InputError(
            f"the result does not fit this module: {'; '.join(problems)}. Pass a module of the trained class, or strict=False to "
            "load the names that both have"
        )


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def _materialize(module: nn.Module, graph: Graph, states: Mapping[str, Array], seed: int) -> None:
    """Replace each tensor on the meta device by one with memory; a tensor with several places gets one replacement."""
    canonical = {name: state for state in graph.states for name in (state.name, *state.aliases)}
    made: dict[int, torch.Tensor] = {}
    for path, owner, key, tensor in list(_places(module)):
        if not tensor.is_meta:
            continue
        if id(tensor) not in made:
            state = canonical.get(path)
            value = torch.empty(tensor.shape, dtype=tensor.dtype)
            if state is not None and state.name not in states and state.kind is not StateKind.CONSTANT:
                value = _first_value(graph, state.name, seed)
            elif state is None:
                raise InputError(
                    f"{path!r} is on the meta device and training never saw it: build the module on the CPU and call "
                    "result.load_into(module)"
                )
            made[id(tensor)] = (
                nn.Parameter(value, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value
            )
        if key in owner._parameters:
            owner._parameters[key] = made[id(tensor)]  # type: ignore[assignment]  # a Parameter, as what it replaces
        else:
            owner._buffers[key] = made[id(tensor)]


def _first_value(graph: Graph, name: str, seed: int) -> torch.Tensor:
    try:
        return initial_value(graph.state[name], seed)
    except GraphError as error:
        raise InputError(f"{error}; build the module on the CPU and call result.load_into(module)") from error


def _places(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    """Every place of a parameter or buffer: its full name, the part that owns it, its own name, the tensor."""
    for path, part in module.named_modules(remove_duplicate=False):
        for key, tensor in chain(part._parameters.items(), part._buffers.items()):
            if tensor is not None:
                yield (f"{path}.{key}" if path else key), part, key, tensor
