"""``bench prediction`` in parts: trials depend on their number alone, and reports of other numbers are joined."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.network.pipeline import network
from benchmarks.planning.prediction import Prediction, PredictionSettings, draw
from farflung.errors import InputError


def part(folder: Path, first: int, count: int, error: float, **changes: object) -> str:
    settings = asdict(replace(PredictionSettings(trials=count, first=first), **changes))
    keys = ("stages", "replicas", "micro_batches", "schedule", "codec", "predicted", "measured")
    trials = [dict.fromkeys(keys, 1) | {"number": first + i, "error": error} for i in range(count)]
    file = folder / f"{first}.json"
    file.write_text(json.dumps({"settings": settings, "figures": {"trials": trials}}))
    return str(file)


def test_a_trial_depends_on_its_number_alone():
    blank = network(5, "100:2")
    settings = PredictionSettings()
    one, other = draw(settings, blank, 1e9, 1000, 7), draw(replace(settings, first=3, trials=9), blank, 1e9, 1000, 7)
    assert one.topology.beta[0, 1] == other.topology.beta[0, 1]
    assert replace(one, topology=blank) == replace(other, topology=blank)


def test_parts_are_joined_and_judged_together(tmp_path):
    files = (part(tmp_path, 20, 10, -0.04), part(tmp_path, 0, 20, 0.02))
    report = Prediction().run(PredictionSettings(trials=0, joined=files), lambda text: None)
    assert [trial["number"] for trial in report.figures["trials"]] == list(range(30))
    assert report.figures["median_error"] == pytest.approx(0.02)
    assert report.passed is True
    few = Prediction().run(PredictionSettings(trials=0, joined=files[1:]), lambda text: None)
    assert few.passed is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"seed": 1}, "its seed is 1, here 0"), ({"first": 29}, "trial 29 is there already; leave it out")],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, changes, told):
    first = int(changes.get("first", 0))
    seed = int(changes.get("seed", 0))
    files = (part(tmp_path, 20, 10, 0.0), part(tmp_path, first, 1, 0.0, seed=seed))
    with pytest.raises(InputError, match=told):
        Prediction().run(PredictionSettings(trials=0, joined=files), lambda text: None)


def test_what_is_no_report_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(InputError, match="no report of the benchmark prediction"):
        Prediction().run(PredictionSettings(trials=0, joined=(str(tmp_path / "x.json"),)), lambda text: None)
    with pytest.raises(InputError, match="there are no trials: set trials or joined"):
        Prediction().run(PredictionSettings(trials=0), lambda text: None)
