"""Built-in models that are captured once, for tests whose subject begins after the capture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from farflung.frontends.recipes import registry
from farflung.frontends.recipes.base import FormName, Recipe
from farflung.graph.ir import Graph

__all__ = ["captured_once"]


@contextmanager
def captured_once() -> Iterator[None]:
    """Inside, each form of a built-in recipe is captured once; recipes that read files are captured each time."""
    load, capture = registry.load_recipe, Recipe.graph
    recipes, graphs = dict[str, Recipe](), dict[tuple[int, FormName, int], Graph]()

    def loaded(recipe: str, args: Mapping[str, Any] | None = None, *, base: Path | None = None) -> Recipe:
        if ":" in recipe or "folder" in (args or {}):
            return load(recipe, args, base=base)
        key = json.dumps([recipe, args], sort_keys=True)
        if key not in recipes:
            recipes[key] = load(recipe, args, base=base)
        return recipes[key]

    def graph(recipe: Recipe, name: FormName, batch_size: int) -> Graph:
        if not any(recipe is known for known in recipes.values()):
            return capture(recipe, name, batch_size)
        key = (id(recipe), name, batch_size)  # the recipe stays alive, so nothing else gets its number
        if key not in graphs:
            graphs[key] = capture(recipe, name, batch_size)
        return graphs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "load_recipe", loaded)
        patch.setattr(Recipe, "graph", graph)
        yield
