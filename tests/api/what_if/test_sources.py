"""Jobs of scenarios: presets and texts; runs are in tests/cli/planning/test_run_plan.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.api.submission import bundle_job
from farflung.api.what_if.sources import MODEL_PRESETS, job_of_text, preset_job, topology_of_text
from farflung.cluster import Topology
from farflung.errors import InputError
from tests.support.commands.planned_jobs import JOB

DEVICE = '[[device]]\nname = "a"\nmemory = "1 GB"\nspeed = "1 GFLOP/s"\n'


@pytest.mark.parametrize(("name", "parameters"), [("gpt-small", 1.24e6), ("gpt2", 124e6), ("resnet-50", 25.6e6)])
def test_presets_have_the_size_that_their_title_says(name: str, parameters: float) -> None:
    graph = bundle_job(preset_job(name), base=Path()).graph
    found = sum(state.spec.numel for state in graph.states if state.kind == "parameter")
    assert found == pytest.approx(parameters, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters"), [("gpt2-large", 774e6), ("gpt2-xl", 1.56e9), ("gpt3-6.7b", 6.7e9)])
def test_large_presets_too(name: str, parameters: float) -> None:
    test_presets_have_the_size_that_their_title_says(name, parameters)


def test_an_unknown_preset() -> None:
    assert set(MODEL_PRESETS) >= {"gpt2"}
    with pytest.raises(
        InputError, match=r"no model preset is called 'gpt9': did you mean 'gpt2'\? known are gpt-small, resnet-50, gpt2"
    ):
        preset_job("gpt9")


def test_the_text_of_a_job_file() -> None:
    assert job_of_text(JOB).name == "tiny"
    with pytest.raises(InputError, match="not valid TOML: "):
        job_of_text("a = ")
    with pytest.raises(InputError, match=r"model is missing: add a \[model\] table"):
        job_of_text('name = "x"')
    with pytest.raises(InputError, match="the job has 5000000 characters, this page takes 4000000: use farflung plan"):
        job_of_text("#" * 5_000_000)
    with pytest.raises(InputError, match="the job has too many brackets inside each other: no job file needs them"):
        job_of_text("a = " + "[" * 100_000)
    for text in (JOB.replace('"gpt"', '"model.py:make"'), JOB.replace("heads = 2", 'folder = "/etc"')):
        with pytest.raises(InputError, match="reads files of the broker's machine, which this page does not do"):
            job_of_text(text)


def test_the_text_of_a_topology_is_read() -> None:
    base = Topology.preset("home-lab")
    assert topology_of_text(base.to_toml()) == base
    for text, message in (
        ("a = ", "not valid TOML"),
        ('[[device]]\nname = "a"\nmemory = "1 GB"', "the topology: "),
        (DEVICE + "count = 257", "the topology has 257 machines, this page takes 256: use farflung plan"),
        (DEVICE + "count = 20000\n" + DEVICE + "count = -19900", "the topology has 20001 machines"),
        ("device = 3", "the topology: "),
        ("#" * 5_000_000, "the topology has 5000000 characters"),
    ):
        with pytest.raises(InputError, match=message):
            topology_of_text(text)
