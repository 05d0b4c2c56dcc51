"""The page of supported architectures says what a run of the catalog says."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.training.architecture_catalog import CATALOG, Architecture
from benchmarks.training.architectures import ArchitectureSettings, chosen, page, page_path, try_architecture

RESULT = json.loads((page_path().parent / "results" / "architectures.json").read_text(encoding="utf-8"))
KNOWN = {entry["model"]: entry for entry in RESULT["figures"]["models"]}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_page_is_that_of_the_result() -> None:
    assert page_path().read_text(encoding="utf-8") == page(RESULT["figures"])
    assert list(KNOWN) == [entry.model for entry in CATALOG]
    assert len(KNOWN) == len(CATALOG)
    equal = [entry for entry in KNOWN.values() if entry["result"] == "equal"]
    assert len(equal) >= 60
    assert len({entry["family"] for entry in equal}) == 8


def check(entry: Architecture) -> None:
    found, known = try_architecture(entry, ArchitectureSettings()), KNOWN[entry.model]
    assert (found["result"], found["operators"]) == (known["result"], known["operators"]), found["text"]


@pytest.mark.parametrize("entry", chosen(8), ids=lambda entry: entry.model)
def test_one_architecture_of_each_family(entry: Architecture) -> None:
    check(entry)


@pytest.mark.slow
@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.model)
def test_every_architecture(entry: Architecture) -> None:
    check(entry)
