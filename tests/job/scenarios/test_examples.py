"""The examples fit the recipes: arguments are known, groups match parameters, data fill the inputs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farflung.data import assign
from farflung.job import load_job

EXAMPLES = Path(__file__).parents[3] / "examples"
FIELDS = {
    "text": ("inputs", "targets", "labels", "attention_mask"),
    "array": ("inputs", "labels"),
    "images": ("inputs", "labels"),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_fit_their_recipes(path: Path) -> None:
    import torch

    from farflung.frontends.recipes import load_recipe

    job = load_job(path)
    assert job.model is not None
    recipe = load_recipe(job.model.recipe, job.model.args)
    with torch.device("meta"):
        names = [name for name, _ in recipe.train.factory().named_parameters()]
    for group in job.optimizer.groups:
        matched = [name for name in names if re.search(group.match, name)]
        assert 0 < len(matched) < len(names)
    fields = assign(job.data, FIELDS[job.data.kind], (*recipe.inputs, *recipe.labels))
    assert [fields[name] for name in recipe.inputs] == ["inputs"]
    assert fields[recipe.labels[0]] == ("targets" if recipe.labels[0] == "targets" else "labels")
