"""An error about an unknown name asks for the close one, of whatever kind the name is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farflung import CodecSpec, OptimizerSpec, PlanSpec, ScheduleSpec
from farflung.api.submission import check_names
from farflung.api.what_if.sources import preset_job
from farflung.cluster import Topology
from farflung.codecs import get_codec, read_codec
from farflung.codecs.memory import get_memory
from farflung.engines import get_engine
from farflung.errors import InputError
from farflung.frontends.recipes import load_recipe
from farflung.job.spec import JobSpec
from farflung.known_names import close_names, did_you_mean, known_names
from farflung.planners import get_planner
from farflung.sync import get_strategy
from farflung.tracking.registry import check_names as check_trackers

COLOURS = ("Red", "green", "blue")


def misspelled(**settings: str) -> dict[str, Any]:
    """Settings whose values the types forbid."""
    return settings


def test_close_names_are_found_whatever_their_case() -> None:
    assert did_you_mean("GRENE", COLOURS) == "did you mean 'green'? "
    assert did_you_mean("red", COLOURS) == "did you mean 'Red'? "
    assert did_you_mean("yellow", COLOURS) == ""
    assert did_you_mean(3, COLOURS) == ""
    assert did_you_mean("greenblue", COLOURS, most=2) == "did you mean 'green' or 'blue'? "
    assert close_names("greem", COLOURS) == ["green"]
    assert close_names("greem", COLOURS, cutoff=0.9) == []


def test_all_known_names_follow() -> None:
    assert known_names("bleu", iter(COLOURS)) == "did you mean 'blue'? known are Red, green, blue"
    assert known_names("bleu", ()) == "known are none"


def test_names_of_other_libraries_are_found() -> None:
    assert did_you_mean("learning_rate", ["lr", "learn_rates"]) == "did you mean 'lr'? "
    assert did_you_mean("learning_rate", ["learn_rates"]) == "did you mean 'learn_rates'? "


def test_only_the_beginning_of_a_long_name_is_compared() -> None:
    assert did_you_mean("g" * 10_000_000, COLOURS) == ""


@pytest.mark.parametrize(
    ("make", "close"),
    [
        (lambda: OptimizerSpec(**misspelled(name="adamww")), "adamw"),
        (lambda: OptimizerSpec(**misspelled(learning_rate="3")), "lr"),
        (lambda: JobSpec(**misspelled(precision="float16")), "fp16"),
        (lambda: JobSpec(**misspelled(precision="bfloat16")), "bf16"),
        (lambda: ScheduleSpec(**misspelled(name="cosin")), "cosine"),
        (lambda: PlanSpec(**misspelled(schedule="gpip")), "gpipe"),
        (lambda: get_strategy("local_sdg"), "local_sgd"),
        (lambda: get_strategy("exat"), "exact"),
        (lambda: get_strategy("diloco", sync_evry=3), "sync_every"),
        (lambda: check_names(JobSpec(codec=CodecSpec(name="adatop"))), "adatopk"),
        (lambda: read_codec("topkk:ratio=3"), "topk"),
        (lambda: read_codec("topk:ratoi=3"), "ratio"),
        (lambda: get_memory("dgc", get_codec("topk"), momentun=0.5), "momentum"),
        (lambda: check_trackers(("tensorbord",)), "tensorboard"),
        (lambda: get_planner("opfence"), "op_fence"),
        (lambda: get_engine("torhc"), "torch"),
        (lambda: Topology.preset("home_lab"), "home-lab"),
        (lambda: preset_job("gpt-smal"), "gpt-small"),
        (lambda: load_recipe("gtp", {}), "gpt"),
        (lambda: load_recipe("gpt", {"widht": 8}), "width"),
        (lambda: load_recipe("gpt", {"dropot": 0.1}), "dropout"),
        (lambda: load_recipe("moe", {"expert": 8}), "experts"),
        (lambda: load_recipe("resnet18", {"stem": "cifr"}), "cifar"),
    ],
)
def test_the_close_name_of_a_misspelled_one(make: Callable[[], Any], close: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{close}'\\?"):
        make()
