"""The benchmark of ``auto``: what it counts, and that a quick run has every part."""

from dataclasses import replace

import pytest

from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.planning.auto import AutoBenchSettings, _Kept, _over, measure
from farflung.errors import InputError
from farflung.graph.builder import GraphBuilder


def chain():
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (8, 16))
    for i in range(4):
        value = builder.add(f"fc{i}", "Linear", value, in_features=16, out_features=16)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (8, 16)))
    return builder.build()


def test_a_planner_counts_where_it_has_a_plan():
    pairs = [
        {"planners": {"op_fence": 4.0, "dtfm": 8.0}, "equal": 2.0, "free": 1.0},
        {"planners": {"op_fence": 1.0}, "equal": 1.0, "free": 1.0},
    ]
    over = _over(pairs)
    assert set(over) == {"op_fence", "dtfm"}
    assert over["op_fence"]["pairs"] == 2
    assert over["op_fence"]["equal_geometric"] == pytest.approx(2**0.5)
    assert over["op_fence"]["free_mean"] == pytest.approx(2.5)
    assert over["dtfm"]["free_geometric"] == pytest.approx(8.0)


def test_planning_is_measured_by_devices():
    settings = AutoBenchSettings(quick=True, evaluations=2, micro_batches=2)
    found = measure(settings, chain(), "tiny", 3)
    assert found["devices"] == 3
    assert found["step_seconds"] <= found["best_other_seconds"]
    assert found["peak_bytes"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_has_every_part():
    bench = BENCHMARKS.get("auto")
    report = bench.run(bench.settings(quick=True), lambda text: None)
    assert report.passed is None
    assert report.figures["feasible"] == 2
    assert all(pair["equal"] <= pair["best_seconds"] for pair in report.figures["pairs"])
    assert report.figures["scales"][0]["devices"] == 8


def test_pairs_that_were_done_are_not_done_again(tmp_path):
    done = {"model": "tiny", "topology": "two-laptops", "planners": {"op_fence": 2.0}, "best": "op_fence", "best_seconds": 2.0}
    first, more = tmp_path / "first.jsonl", tmp_path / "more.jsonl"
    settings = AutoBenchSettings(models=("tiny",), topologies=("two-laptops",), scales=(), kept=(str(first), str(more)))
    _Kept(replace(settings, kept=(str(more),))).add(done | {"equal": 2.0, "free": 1.0})
    report = BENCHMARKS.get("auto").run(settings, lambda text: pytest.fail("it was done"))
    assert report.figures["feasible"] == 1
    assert report.figures["over"]["op_fence"]["free_mean"] == 2.0
    assert not first.exists()
    with pytest.raises(InputError, match=r"its pairs have the settings .*'evaluations': 40"):
        _Kept(replace(settings, evaluations=7))
    first.write_text("nonsense\n")
    with pytest.raises(InputError, match="does not hold pairs of this benchmark"):
        _Kept(settings)
