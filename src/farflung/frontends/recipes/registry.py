"""Recipes by name, and a user's own from a Python file (both are resolved on the submitting machine only)."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from farflung.errors import FarflungError, InputError
from farflung.foreign_code import first_line, translated
from farflung.frontends.recipes.base import Form, Recipe
from farflung.known_names import known_names
from farflung.registry import Registry

__all__ = ["RECIPES", "load_recipe"]

MakeRecipe = Callable[..., Recipe]

#: Recipes by name; installed packages add theirs under the entry-point group ``farflung.recipes``.
RECIPES: Registry[MakeRecipe] = Registry("recipe", "recipes")


def _from(module: str, function: str, *first: Any) -> Callable[[], MakeRecipe]:
    def load() -> MakeRecipe:
        make: MakeRecipe = getattr(importlib.import_module(f"farflung.frontends.recipes.{module}"), function)
        return partial(make, *first) if first else make

    return load


for _name in ("gpt", "cnn", "moe"):
    RECIPES.add(_name, _from(_name, _name))
for _depth in (18, 50, 101):
    RECIPES.add(f"resnet{_depth}", _from("resnet", "resnet", _depth))
for _name in ("gpt2", "llama", "bert", "albert"):
    RECIPES.add(_name, _from("huggingface", "huggingface", _name))
RECIPES.add("hf", _from("model_folder", "model_folder"))
RECIPES.add("timm", _from("timm_folder", "timm_model"))
RECIPES.add("diffusers", _from("diffusion_folder", "diffusion_model"))


def load_recipe(recipe: str, args: Mapping[str, Any] | None = None, *, base: Path | None = None) -> Recipe:
    """The recipe called ``recipe``, or ``path/to/file.py:function`` (relative to ``base``), called with ``args``.

    A file's function gives a ``Recipe``, or a module whose forward gives the scalar loss; then the file also has
    ``example_inputs(batch_size)``, which gives a tuple of tensors.

    Raises:
        InputError: the name is unknown, the file or its function is missing, or an argument does not fit.
    """
    path, colon, function = recipe.rpartition(":")
    if not colon or not path.endswith(".py"):
        make_known = RECIPES.get(recipe)
        _check_numbers(make_known, recipe, args or {})
        found: Recipe = _call(make_known, recipe, args or {})
        return found
    file = (base or Path()) / path
    if not file.is_file():
        raise InputError(f"model recipe {recipe!r}: there is no file {file}")
    module = _load(file, recipe)
    make = getattr(module, function, None)
    if not callable(make):
        known = ", ".join(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        raise InputError(f"model recipe {recipe!r}: {file.name} has no function {function!r}, it has {known or 'none'}")
    return _own(module, make, recipe, args or {})


def _check_numbers(make: MakeRecipe, recipe: str, args: Mapping[str, Any]) -> None:
    """Sizes and counts of a recipe are whole numbers from 1 on: those whose default is one."""
    for name, parameter in inspect.signature(make).parameters.items():
        value = args.get(name, parameter.default)
        counts = type(parameter.default) is int and parameter.default >= 1
        if counts and (type(value) is not int or value < 1):
            raise InputError(f"model recipe {recipe!r}: model.args.{name} = {value!r}: must be a whole number from 1 on")


def _call(make: Callable[..., Any], recipe: str, args: Mapping[str, Any]) -> Any:
    try:
        inspect.signature(make).bind(**args)
    except TypeError as error:
        raise InputError(_argument_error(make, recipe, args, error)) from error

    def describe(error: Exception) -> Exception:
        if isinstance(error, FarflungError):
            return error
        inner = _passed_on(make, error)
        return InputError(_argument_error(inner, recipe, args, error) if inner is not None else _failure(recipe, args, error))

    with translated(describe):
        return make(**args)


def _argument_error(make: Callable[..., Any], recipe: str, args: Mapping[str, Any], error: Exception) -> str:
    parameters = inspect.signature(make).parameters.values()
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    known = [item.name for item in parameters if item.kind not in kinds and item.name != "self"]
    unknown = [key for key in args if key not in known]
    if not unknown or inspect.Parameter.VAR_KEYWORD in {item.kind for item in parameters}:
        return f"model recipe {recipe!r}: {error}; its arguments are {', '.join(known) or 'none'}"
    return f"model recipe {recipe!r}: unknown argument model.args.{unknown[0]}: {known_names(unknown[0], known)}"


def _passed_on(make: Callable[..., Any], error: Exception) -> Callable[..., Any] | None:
    """What ``make`` handed its keywords on to, if that is what refused one (``def make(**args): return Net(**args)``)."""
    found = re.match(r"([\w.]+)\(\) got an unexpected keyword argument", str(error))
    if not isinstance(error, TypeError) or found is None:
        return None
    inner: Any = getattr(inspect.unwrap(make), "__globals__", {}).get(found[1].split(".")[0])
    for name in found[1].split(".")[1:]:
        inner = getattr(inner, name, None)
    return inner if callable(inner) else None


def _failure(recipe: str, args: Mapping[str, Any], error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    told = ", ".join(f"{key} = {value!r}" for key, value in args.items()) or "no arguments"
    return (
        f"model recipe {recipe!r} fails with {type(error).__name__}: {first_line(error)} "
        f"({Path(last.filename).name}, line {last.lineno}); called with {told}"
    )


def _load(file: Path, recipe: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"farflung_user_{file.stem}", file.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        with translated(lambda e: InputError(f"model recipe {recipe!r}: {file} fails with {type(e).__name__}: {e}")):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


def _own(module: ModuleType, make: Callable[..., Any], recipe: str, args: Mapping[str, Any]) -> Recipe:
    examples = getattr(module, "example_inputs", None)
    if examples is None:
        found = _call(make, recipe, args)
        if isinstance(found, Recipe):
            return found
        raise InputError(
            f"model recipe {recipe!r} gives {found!r:.60}: return a Recipe, or return a module and define "
            "example_inputs(batch_size) beside it"
        )
    names = _forward_names(make, recipe, args)
    form = Form(factory=lambda: _call(make, recipe, args), example_inputs=examples)
    return Recipe(name=make.__name__, train=form, evaluate=form, inputs=names[:1], labels=names[1:])


def _forward_names(make: Callable[..., Any], recipe: str, args: Mapping[str, Any]) -> tuple[str, ...]:
    import torch

    with torch.device("meta"):
        module = _call(make, recipe, args)
    if not isinstance(module, nn.Module):
        raise InputError(f"model recipe {recipe!r} gives {module!r:.60}: return a torch.nn.Module")
    parameters = inspect.signature(module.forward).parameters.values()
    return tuple(item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD))
