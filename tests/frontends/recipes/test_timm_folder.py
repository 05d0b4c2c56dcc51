"""The recipe timm: names of states, sizes, a classifier for other classes, and what its errors say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farflung.errors import InputError
from farflung.frontends.recipes import load_recipe
from farflung.graph.weight_expressions import INITIAL
from tests.support.models.vision_libraries import save_timm, timm_library

timm = timm_library()


def config(recipe: Any) -> Any:
    return json.loads(recipe.notes["timm"])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("test_resnet", {}),
        ("test_vit", {"size": 32}),
        ("test_convnext", {"drop_path_rate": 0.2}),
        ("test_efficientnet", {"in_chans": 1, "drop_rate": 0.1}),
    ],
)
def test_states_are_those_of_the_library(name: str, args: dict[str, Any]) -> None:
    recipe = load_recipe("timm", {"name": name, "size": 64, "num_classes": 3, **args})
    graph = recipe.graph("train", 2)
    size = args.get("size", 64)
    (images,) = (op for op in graph.placeholders if op.name == "images")
    assert images.outputs[0].shape == (2, args.get("in_chans", 3), size, size)
    given = config(recipe)
    made = timm.create_model(given["architecture"], num_classes=given["num_classes"], **given["model_args"])
    found = {state.name for state in graph.states if state.persistent}
    assert {f"network.{key}" for key in made.state_dict()} <= found
    assert ("correct" in dict(recipe.graph("evaluate", 2).outputs), recipe.weights) == (True, None)


def test_images_have_the_size_of_the_model_unless_told() -> None:
    for args, size in (({}, 160), ({"size": 48}, 48), ({"img_size": 80}, 80)):
        recipe = load_recipe("timm", {"name": "test_vit", **args})
        assert recipe.train.example_inputs(1)[0].shape == (1, 3, size, size)
        assert config(recipe)["pretrained_cfg"]["input_size"] == [3, size, size]


def test_another_number_of_classes_begins_with_a_new_classifier(tmp_path: Path) -> None:
    save_timm("test_resnet", tmp_path, num_classes=5)
    same = load_recipe("timm", {"folder": str(tmp_path), "size": 32})
    assert config(same)["num_classes"] == 5
    assert same.weights == str(tmp_path)
    other = load_recipe("timm", {"folder": str(tmp_path), "size": 32, "num_classes": 3})
    assert config(other)["num_classes"] == 3
    assert same.sources is not None
    assert other.sources is not None
    none: Any = None
    assert same.sources((), none) == {}
    assert other.sources((), none) == {"network.fc.weight": INITIAL, "network.fc.bias": INITIAL}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({}, r"timm: give model\.args\.folder \(a folder with config\.json\) or model\.args\.name \(an architecture\), not both"),
        ({"name": "test_vit", "folder": "x"}, r"timm: give model\.args\.folder"),
        ({"name": "hf-hub:timm/resnet18"}, r"nothing is downloaded; download the model, and set model\.args\.folder"),
        ({"name": "resnet19"}, r"timm: the library has no architecture 'resnet19' \(model\.args\.name\): did you mean 'resnet1"),
        ({"name": "???"}, r"no architecture '\?\?\?' .*: timm\.list_models\(\) lists them"),
        ({"name": "test_vit", "colour": 3}, r"timm: the model can't be built: .*colour.*; called with colour = 3"),
        ({"folder": "none"}, r"model\.args\.folder = 'none' has no config\.json: name the folder of a downloaded model"),
        ({"name": "test_resnet", "size": -1}, r"size = -1"),
    ],
)
def test_errors(args: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        load_recipe("timm", args)


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"timm: .*config\.json can't be used: "):
        load_recipe("timm", {"folder": str(tmp_path)})
    (tmp_path / "pytorch_model.bin").write_text("")
    with pytest.raises(
        InputError, match=r"are pickled, and pickled files are never read: save them with timm\.models\.save_for_hf"
    ):
        load_recipe("timm", {"folder": str(tmp_path)})


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match=r"^this recipe needs the library timm: pip install 'farflung\[timm\]'$"):
        load_recipe("timm", {"name": "test_vit"})
