"""Recipes by name and from a user's file."""

from __future__ import annotations

import pytest
import torch

from farflung.errors import InputError
from farflung.frontends.recipes import RECIPES, Recipe, load_recipe

OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 1)
    def forward(self, features, wanted):
        return (self.layer(features).squeeze(1) - wanted).pow(2).mean()

def model(width=4):
    return Net(width)

def passing(**args):
    return Net(**args)

def failing():
    return Net({}["depth"])

def example_inputs(batch_size):
    return torch.zeros(batch_size, 4), torch.zeros(batch_size)
"""


def test_the_registry_has_all_models():
    assert list(RECIPES) == [
        "albert",
        "bert",
        "cnn",
        "diffusers",
        "gpt",
        "gpt2",
        "hf",
        "llama",
        "moe",
        "resnet101",
        "resnet18",
        "resnet50",
        "timm",
    ]


def test_a_users_own_file(tmp_path):
    (tmp_path / "net.py").write_text(OWN)
    recipe = load_recipe("net.py:model", {"width": 4}, base=tmp_path)
    assert isinstance(recipe, Recipe)
    assert (recipe.inputs, recipe.labels) == (("features",), ("wanted",))
    graph = recipe.graph("train", 3)
    assert [op.name for op in graph.placeholders] == ["features", "wanted"]
    assert graph.state["layer.weight"].init


@pytest.mark.parametrize(
    ("recipe", "args", "text"),
    [
        ("gtp", {}, "unknown recipe 'gtp': did you mean 'gpt'"),
        ("gpt", {"heads": 3}, "width 128 must be a multiple of heads 3"),
        ("gpt", {"depth": 3}, "unknown argument 'depth': did you mean 'width'. known are vocab"),
        ("moe", {"depth": 3}, "unknown argument 'depth': did you mean 'width'. known are vocab"),
        ("moe", {"heads": 3}, "width 64 must be a multiple of heads 3"),
        (
            "cnn",
            {"depth": 3},
            "unknown argument model.args.depth: did you mean 'width'. known are channels, size, classes, width, dropout",
        ),
        ("resnet18", {"stem": "small"}, "unknown stem 'small': known are cifar, imagenet"),
        ("gpt2", {"depth": 3}, "gpt2: unknown argument 'depth': .*known are sequence"),
        ("llama", {"sequence": 64, "max_position_embeddings": 8}, "sequence 64 is longer than max_position_embeddings 8"),
        ("missing.py:model", {}, "there is no file"),
        ("net.py:nothing", {}, "has no function 'nothing', it has"),
        ("broken.py:model", {}, "fails with ZeroDivisionError"),
        (
            "net.py:model",
            {"wdth": 4},
            r"'net.py:model': unknown argument model.args.wdth: did you mean 'width'\? known are width",
        ),
        ("net.py:Net", {"wdth": 4}, "unknown argument model.args.wdth: did you mean 'width'. known are width"),
        ("net.py:Net", {}, "missing a required argument: 'width'; its arguments are width"),
        ("net.py:passing", {"wdth": 4}, "unknown argument model.args.wdth: did you mean 'width'. known are width"),
        ("net.py:failing", {}, r"'net.py:failing' fails with KeyError: 'depth' \(net.py, line 19\); called with no arguments"),
        ("bare.py:model", {}, "return a Recipe, or return a module and define"),
    ],
)
def test_refusals(recipe, args, text, tmp_path):
    (tmp_path / "net.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "bare.py").write_text("def model():\n    return 3\n")
    with pytest.raises(InputError, match=text):
        load_recipe(recipe, args, base=tmp_path)


def test_an_unknown_form_is_refused():
    with pytest.raises(InputError, match="recipe 'bert' has no form 'generate': it has train, evaluate"):
        load_recipe("bert").form("generate")


def test_graphs_of_a_job():
    recipe = load_recipe("gpt", {"sequence": 8, "layers": 1, "width": 8, "heads": 1})
    assert set(recipe.graphs([2, 2, 3])) == {("train", 2), ("train", 3), ("evaluate", 2), ("generate", 1)}


def test_a_model_of_the_library_computes_its_loss_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("transformers.modeling_utils")
    warned: list[str] = []
    monkeypatch.setattr(library.logger, "warning_once", warned.append)
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 64, "sequence": 8}
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    assert torch.isfinite(load_recipe("gpt2", sizes).train.factory()(tokens, tokens))
    assert warned == []
