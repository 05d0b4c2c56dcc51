"""The recorded conversions give what from_pretrained of the library gives, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import safetensors.numpy
import torch

from farflung.checkpoint import Weights
from farflung.errors import CheckpointError
from farflung.frontends.recipes.file_sources import StandIn, file_sources
from tests.support.models.model_folders import FOLDERS, save_model

pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", FOLDERS)
def test_every_state_is_found(tmp_path: Path, kind: str) -> None:
    model = save_model(kind, tmp_path)
    weights = Weights.open(tmp_path)
    found = file_sources(model, weights.names, lambda name: weights.entry(name).spec)
    truth = type(model).from_pretrained(tmp_path).state_dict()
    for name, source in found.items():
        assert np.array_equal(weights.read(source), truth[name].numpy()), name
    assert {name for name, _ in model.named_parameters()} <= found.keys()
    assert any(not isinstance(source, str) for source in found.values()) == (kind == "experts")


def test_the_base_model_under_a_head(tmp_path: Path) -> None:
    """The files of a BERT without head are those of a classifier's body."""
    model = save_model("sequence_classification", tmp_path / "whole")
    body = {name: value.numpy() for name, value in model.bert.state_dict().items()}
    (tmp_path / "body").mkdir()
    safetensors.numpy.save_file(body, tmp_path / "body" / "model.safetensors")
    weights = Weights.open(tmp_path / "body")
    found = file_sources(model, weights.names, lambda name: weights.entry(name).spec)
    assert found["bert.embeddings.word_embeddings.weight"] == "embeddings.word_embeddings.weight"
    assert "classifier.weight" not in found


def test_an_unknown_conversion_has_a_remedy() -> None:
    with pytest.raises(CheckpointError, match=r"in a way that is not supported \(aten\.sin\.default\): load the folder with"):
        torch.sin(StandIn(torch.empty(3, device="meta"), "a"))


def test_operations_are_recorded() -> None:
    first, second = (StandIn(torch.empty(4, 6, device="meta"), name) for name in "ab")
    joined: Any = torch.stack([first.t(), second.transpose(0, 1)])
    assert joined.source == ["stack", 0, ["transpose", 0, 1, "a"], ["transpose", 0, 1, "b"]]
    parts: Any = first.chunk(2, dim=-1)
    assert [part.source for part in parts] == [["slice", 1, 0, 3, "a"], ["slice", 1, 3, 6, "a"]]
    last, row, moved = (cast("StandIn", one) for one in (first[-2:], first[1], first.view(2, 12).permute(-1, 0).contiguous()))
    assert last.source == ["slice", 0, 2, 4, "a"]
    assert row.source == ["reshape", [6], ["slice", 0, 1, 2, "a"]]
    assert moved.source == ["permute", [1, 0], ["reshape", [2, 12], "a"]]
