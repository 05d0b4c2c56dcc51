"""Every benchmark at its smallest: that it measures what it says, not how fast this machine is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app, main
from benchmarks.harness.base import override
from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.harness.models import family
from benchmarks.harness.probe import peak_bytes, resident_bytes, tree_bytes
from benchmarks.planning.planning import PlanningSettings, measure
from benchmarks.training.codecs import entropy_bits
from benchmarks.training.exactness import differences
from benchmarks.training.loss import codec_of, time_to
from benchmarks.training.loss_plot import draw
from farflung.errors import InputError, PlanError
from farflung.sync import STRATEGIES
from tests.support.documents.documented_commands import PAGES


def run(name: str, *pairs: str) -> Any:
    chosen = BENCHMARKS.get(name)
    return chosen.run(override(chosen.settings(quick=True), pairs), lambda text: None)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments])


def test_the_catalog_has_them_all_and_the_list_shows_them() -> None:
    names = (
        "architectures auto chain changing chaos codecs compression coverage crawl dreamddp dtfm emulator engines "
        "environments exactness fusionllm fusionllm-loss fuzz fuzz-decoders fuzz-graphs grid hostile hybrid hybrid-ps "
        "isolation joining kept launchers loss loss-study members memory messages nat overhead overlap pipeline planners "
        "planning prediction profile replicas resume serving shared-cores silent-connections simulator sites startup "
        "sync-loss sync-memory sync-network sync-schedule sync-speeds sync-strategies takeover tiers trace-cost trackers "
        "transport verification web"
    )
    assert tuple(BENCHMARKS) == tuple(names.split())
    lines = invoke("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(BENCHMARKS)


def test_dreamddp_uses_two_printed_columns_and_predicts_the_others(tmp_path: Path) -> None:
    picture = tmp_path / "table.svg"
    report = run("dreamddp", f"plot={picture}")
    (found,) = report.figures["table_1"]
    for given in ("ssgd", "local_sgd"):
        assert found["seconds"][given] == pytest.approx(found["paper"][given])
    for better, worse in (("free", "dreamddp"), ("dreamddp", "local_sgd"), ("asc_wfbp", "ssgd")):
        assert found["seconds"][better] <= found["seconds"][worse] + 1e-9
    (search,) = report.figures["searches"]
    assert search["methods"]["brute_force"]["exposed_seconds"] <= search["methods"]["dreamddp"]["exposed_seconds"] + 1e-9
    assert picture.stat().st_size > 1000


def test_hybrid_ps_compares_systems_under_losses(tmp_path: Path) -> None:
    picture = tmp_path / "batches.svg"
    report = run("hybrid-ps", f"plot={picture}")
    calm, lossy = (run["seconds"] for run in report.figures["table_2"])
    assert calm["ours"] == pytest.approx(420.75, rel=0.01), "16 V100 take the minutes of case 1, of which these are an eighth"
    assert lossy["dapple"] > calm["dapple"]
    assert lossy["swarm"] > calm["swarm"]
    assert lossy["dedloc"] > calm["dedloc"]
    assert {run["network"] for run in report.figures["roles"]} == {"case 1", "case 4", "regions 0", "regions 1", "regions 2"}
    assert picture.stat().st_size > 1000


def test_planners_lists_refusals_where_a_plan_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.planning import planners

    report = run("planners", "topologies=local4-two-regions", "planners=op_fence,hybrid_ps")
    (pair,) = report.figures["pairs"]
    assert all(found["step_seconds"] > 0 and found["devices"] for found in pair["planners"].values())
    assert report.figures["missing"] == []

    class Refusing:
        def plan(self, *_: object, **__: object) -> object:
            raise PlanError("no room; add memory")

    real = planners.get_planner
    monkeypatch.setattr(planners, "get_planner", lambda name: Refusing() if name == "hybrid_ps" else real(name))
    report = run("planners", "topologies=local4-two-regions", "planners=op_fence,hybrid_ps")
    told = {"model": "tiny", "topology": "local4-two-regions", "planner": "hybrid_ps", "why": "no room; add memory"}
    assert report.figures["missing"] == [told]


def test_planners_ends_a_planner_that_takes_too_long() -> None:
    report = run("planners", "topologies=local4-two-regions", "planners=op_fence,auto", "seconds=0.000001")
    found = report.figures["pairs"][0]["planners"]["auto"]
    assert found["refused"] == "it took more than 1e-06 s of CPU time"


def test_a_file_that_can_not_be_written_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object) -> object:
        raise AssertionError("work was begun")

    monkeypatch.setattr(type(BENCHMARKS.get("grid")), "run", never)
    with pytest.raises(SystemExit) as ended:
        main(["grid", "--json", "gone/grid.json"])
    assert ended.value.code == InputError.exit_code
    expected = "benchmarks: gone/grid.json can't be written: No such file or directory; choose another file\n"
    assert capsys.readouterr().err == expected


def test_exactness_compares_losses_gradients_and_weights() -> None:
    report = run("exactness", "models=cnn", "workers=1,3", "cuts=1", "steps=2")
    runs = report.figures["runs"]
    planners = ["equal_number", "equal_number", "equal_compute", "random", "equal_number 2x1", "train()"]
    assert [item["planner"] for item in runs] == planners
    assert [item["workers"] for item in runs[:5]] == [1, 3, 3, 3, 2]
    assert report.passed is True
    assert all(item["tensors"] > 10 for item in runs)


def test_exactness_sees_one_changed_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.training import exactness

    plain = exactness.plain_loop

    def bent(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        name = next(iter(result.gradients))
        result.gradients[name].reshape(-1)[:1].view(np.int32)[0] ^= 1
        return result

    monkeypatch.setattr(exactness, "plain_loop", bent)
    report = run("exactness", "models=cnn", "workers=1", "steps=1")
    assert report.passed is False
    assert report.checks[0].note.startswith("first difference: cnn, equal_number, 1 workers: gradient ")


def test_differences_compare_bits_names_and_shapes() -> None:
    truth = {"a": np.array([0.0, 1.0], np.float32), "b": np.ones(2, np.float32)}
    assert differences(truth, truth) == (0, 0.0, "")
    assert differences(truth, {"a": np.array([-0.0, 1.0], np.float32)}) == (1, 0.0, "a")
    assert differences(truth, {"b": np.array([1.0, 3.0], np.float32)}) == (1, 2.0, "b")
    assert differences(truth, {"c": np.ones(1, np.float32)}) == (1, float("inf"), "c")


def test_unknown_models_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown model 'gpt9': known are gpt2, llama, bert, resnet18, cnn"):
        family("gpt9", quick=True)


def test_overhead_alternates_and_reports_one_ratio_per_pair() -> None:
    report = run("overhead", "pairs=2")
    (model,) = report.figures["models"]
    assert len(model["ratios"]) == 2
    assert all(ratio > 0 for ratio in model["ratios"])
    assert report.passed is None


def test_codecs_measures_sizes_speed_and_every_member() -> None:
    report = run("codecs", "device=cpu")
    assert report.figures["device"].keys() == {"copy", "int4 rotated", "topk 100"}
    assert sum(check.name.startswith(("int4 rotated on cpu", "topk 100 on cpu")) for check in report.checks) == 2
    assert [item["density"] for item in report.figures["index_bytes"]] == [0.001, 0.01, 0.1]
    assert all(1.0 <= item["over_entropy"] < 1.3 for item in report.figures["index_bytes"])
    assert len(report.figures["speed"]["ratios"]) == 2
    errors = {item["codec"]: item["error"] for item in report.figures["members"]}
    assert errors["identity"] == 0.0
    rates = ["8 Mbit/s", "80 Mbit/s", "1 Gbit/s", "10 Gbit/s"]
    assert [item["rate"] for item in report.figures["auto"]] == [rate for rate in rates for _ in range(3)]
    assert report.figures["auto"][2]["codec"].endswith("with difference")
    assert report.figures["auto"][0]["codec"] != "identity" == report.figures["auto"][-1]["codec"]
    assert errors["int8"] < errors["int4"] < errors["int2"] < errors["sign"] < 1.0
    assert report.passed is None


def test_fuzz_counts_payloads_and_faults() -> None:
    report = run("fuzz", "inputs=50")
    assert report.figures["inputs"] == 50
    assert sum(report.figures["outcomes"].values()) == 50
    assert report.passed is True


def test_entropy_of_a_choice() -> None:
    assert entropy_bits(4, 2) == pytest.approx(np.log2(6) / 2)
    assert entropy_bits(1 << 24, 1) == pytest.approx(24)


def test_planning_captures_plans_and_reads_its_own_memory() -> None:
    settings = BENCHMARKS.get("planning").settings(quick=True)
    assert isinstance(settings, PlanningSettings)
    figures = measure(settings)
    assert figures["devices"] == 4
    assert figures["parameters"] > 10_000
    assert 50e6 < figures["peak_bytes"] < 16e9
    assert figures["capture_seconds"] > 0
    assert figures["plan_seconds"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_planning_measures_a_process_of_its_own() -> None:
    report = run("planning")
    assert report.figures["parameters"] > 10_000
    assert report.figures["devices"] == 4
    assert 50e6 < report.figures["peak_bytes"] < 4e9
    assert report.passed is None


def test_loss_trains_every_variant_in_both_phases_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "loss.svg"
    report = run("loss", "variants=dense,topk-10", f"plot={picture}")
    for curves in report.figures["phases"].values():
        assert list(curves) == ["dense", "topk-10"]
        assert curves["topk-10"][-1]["bytes"] < 0.3 * curves["dense"][-1]["bytes"]
        assert curves["topk-10"][-1]["eval_loss"] != curves["dense"][-1]["eval_loss"]
    assert "<svg" in picture.read_text()
    with pytest.raises(InputError, match=r"written as \.svg, \.png or \.pdf, not as 'loss.txt'"):
        draw(report.figures, tmp_path / "loss.txt")


def test_variants_are_codecs_with_ratios() -> None:
    assert codec_of("dense").name == "identity"
    assert (codec_of("topk-30").name, codec_of("topk-30").ratio) == ("topk", 30.0)
    assert codec_of("int8").name == "int8"
    assert (codec_of("auto-0.3").name, codec_of("auto-0.3").error) == ("auto", 0.3)
    assert (codec_of("int4-rotated").name, codec_of("int4-rotated").rotate) == ("int4", True)
    with pytest.raises(InputError, match="variant 'topk-many': write a codec's name, or name-ratio"):
        codec_of("topk-many")


@pytest.mark.slow
def test_loss_trains_and_times_on_the_files_that_are_given(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be " * 200, encoding="utf-8")
    files = f"data={tmp_path / 'a.txt'}", f"tune={tmp_path / 'a.txt'}"
    report = run("loss", "variants=dense,int8", "timed_steps=2", "rate=1 Gbit/s", *files)
    assert set(report.figures["seconds_per_step"]) == {"dense", "int8"}
    assert report.figures["data"] == "scratch/a.txt **/*"
    with pytest.raises(InputError, match=r"no text to train on in .*absent.txt: No such file or directory; give a file"):
        run("loss", "variants=dense", f"data={tmp_path / 'absent.txt'}")


def test_time_to_a_loss_is_that_of_the_first_point_below() -> None:
    curve = [{"eval_loss": 3.0, "bytes": 1.0}, {"eval_loss": 2.0, "bytes": 2.0}, {"eval_loss": 1.0, "bytes": 3.0}]
    assert time_to(curve, 2.0, "bytes") == 2.0
    assert time_to(curve, 0.5, "bytes") is None


def test_the_probe_sees_memory_that_is_taken() -> None:
    before = resident_bytes()
    block = np.ones(64 << 20, np.uint8)
    assert resident_bytes() - before > 48 << 20
    del block
    assert peak_bytes() - before > 48 << 20


def test_the_probe_sees_memory_of_child_processes() -> None:
    block = np.ones(64 << 20, np.uint8)
    program = "import sys; block = bytearray(b'x') * (64 << 20); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = tree_bytes(os.getpid())
        child.communicate()
    assert found.keys() >= {os.getpid(), child.pid}
    assert found[os.getpid()] >= block.nbytes
    assert 64 << 20 <= found[child.pid] < 100 << 20


def test_the_command_writes_json_to_a_file_or_to_standard_output(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    arguments = ["overhead", "--quick", "--set", "pairs=1"]
    done = invoke(*arguments, "--json", str(file))
    assert done.exit_code == 0, done.output
    document = json.loads(file.read_text())
    assert document["benchmark"] == "overhead"
    assert document["settings"]["pairs"] == 1
    assert document["environment"]["torch"]
    shown = invoke(*arguments, "--json")
    assert json.loads(shown.stdout)["figures"]["models"]
    assert "not judged" in shown.stderr


def test_a_file_without_json_and_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"'out\.txt' is not used without --json: write --json out\.txt"):
        CliRunner().invoke(app, ["overhead", "out.txt"], catch_exceptions=False)
    with pytest.raises(InputError, match="unknown benchmark 'exactnes': did you mean 'exactness'"):
        CliRunner().invoke(app, ["exactnes"], catch_exceptions=False)


def test_sync_schedule_compares_with_brute_force_and_with_contiguous_sets() -> None:
    report = run("sync-schedule", "periods=3", "judged_period=3")
    assert report.figures["worst_difference_to_brute_force"] < 1e-9
    table = report.figures["free"]["3"]
    assert set(table) == {"uniform", "log-normal", "transformer", "all", "all, ratio 3 to 8"}
    assert all(row["worse"] == 0 and row["gap_percent_mean"] >= 0 for row in table.values())
    assert set(report.figures["seconds"]) == {"20x4 optimal", "20x4 free"}
    assert report.passed is True


def test_the_simulator_handles_as_many_events_as_the_plan_has() -> None:
    report = run("simulator")
    micro_batches, stages, steps = 4, 4, 5
    actions, frames, verdicts, updates = 2 * micro_batches * stages, 2 * micro_batches * (stages - 1), stages - 1, stages
    assert report.figures["events"] == steps * (actions + frames + verdicts + updates)
    assert set(report.figures["codec_bytes_per_second"]) == {"fp16", "bf16", "int8", "topk"}


@pytest.mark.slow
def test_the_cost_of_a_reported_step_is_counted() -> None:
    figures = run("trackers").figures
    costs = figures["microseconds"]
    assert set(costs) == {"worker", "broker", "csv", "tensorboard"}
    assert figures["share"] > figures["share_on_the_way"] > 0
    assert figures["share"] > sum(costs.values()) * 1e-6 / 0.5


def test_a_span_s_cost_is_counted() -> None:
    report = run("trace-cost")
    costs = report.figures["microseconds"]
    assert set(costs) == {"note", "pack", "broker"}
    assert report.figures["wire_bytes"] == 37
    assert 100 < report.figures["memory_bytes"] < 1000
    assert report.figures["share"] == pytest.approx(12 * (costs["note"] + costs["pack"]) * 1e-6 / 0.02)


def test_sync_strategies_compare_with_ssgd() -> None:
    report = run("sync-strategies", "strategies=wfbp,local_sgd,free_sets", "steps=6")
    found = report.figures["strategies"]
    assert list(found) == ["ssgd", "wfbp", "local_sgd", "free_sets", "local_sgd by_speed"]
    assert found["ssgd"]["gap"] == 0 == found["wfbp"]["gap"]
    assert found["ssgd"]["loss"] == found["wfbp"]["loss"] != found["local_sgd"]["loss"]
    assert 4 < found["ssgd"]["bytes_per_parameter_per_step"] < 4.2
    assert found["local_sgd"]["model_step_backwards"] == pytest.approx(2.0)
    assert 1 < found["free_sets"]["model_step_backwards"] < found["wfbp"]["model_step_backwards"]
    assert report.passed is True


def test_all_sync_strategies_are_compared() -> None:
    found = run("sync-strategies", "steps=10").figures["strategies"]
    assert set(STRATEGIES) < set(found)
    assert all(np.isfinite(row["loss"]) for row in found.values())


def test_the_byte_network_has_the_gradient_of_its_loss() -> None:
    from benchmarks.training.sync_strategies import ByteNetwork, SyncStrategies

    network = ByteNetwork(SyncStrategies().settings(quick=True), bytes(range(256)) * 40, seed=0)
    random = np.random.default_rng(0)
    parameters = [layer.astype(np.float64) for layer in network.start()]
    directions = [random.standard_normal(layer.shape) for layer in parameters]
    _, gradient = network.gradient(parameters, 0, 0)
    for index, direction in enumerate(directions):
        ends = []
        for sign in (1e-6, -1e-6):
            moved = [layer + sign * direction if at == index else layer for at, layer in enumerate(parameters)]
            ends.append(network.gradient(moved, 0, 0)[0])
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx((gradient[index] * direction).sum(), rel=1e-4)


def test_settings_of_the_commands_of_the_pages_are_known() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    commands = [found for text in texts for found in re.findall(r"python -m benchmarks ([a-z][\w-]*)((?: --set \S+)*)", text)]
    assert {name for name, _ in commands} == {*BENCHMARKS, "list"}
    for name, words in commands:
        if name == "list":
            continue
        pairs = [word.rstrip("`.,") for word in words.split() if "=" in word]
        assert override(BENCHMARKS.get(name).settings(quick=False), pairs)


def test_dtfm_lays_its_scheduler_beside_random_placement_and_other_systems() -> None:
    report = run("dtfm")
    (found,) = report.figures["runs"]
    seconds = {name: one["step_seconds"] for name, one in found["systems"].items()}
    others = ("Megatron-LM", "ZeRO-3", "DeepSpeed, pipelines", "DeepSpeed")
    ranks = {f"{name}{order}" for name in others for order in ("", ", random ranks")}
    assert seconds.keys() == {"grid", "dtfm", "random_grid"} | ranks
    assert seconds["grid"] <= seconds["random_grid"]
    assert seconds["DeepSpeed"] == min(seconds["ZeRO-3"], seconds["DeepSpeed, pipelines"])
    assert report.figures["mean_pflops"]["local4-two-regions"]["dtfm"] == found["systems"]["dtfm"]["pflops"]
    assert found["systems"]["dtfm"]["pflops"] == found["flops"] / seconds["dtfm"] / 1e15
    (curves,) = report.figures["curves"].values()
    assert min(curves.values()) == curves["search"]


def test_dtfm_names_the_larger_models_that_it_knows() -> None:
    with pytest.raises(InputError, match=r"unknown model '7b': known are 6\.7b, 13b"):
        run("dtfm", "larger=7b")


def test_fusionllm_lays_planners_and_codecs_side_by_side() -> None:
    report = run("fusionllm")
    runs = report.figures["runs"]
    assert {(item["planner"], item["codec"]) for item in runs} == {
        (planner, codec)
        for planner in ("equal_number", "equal_compute", "op_fence as written", "op_fence", "auto")
        for codec in ("dense", "topk 100", "adatopk 100")
    }
    for codec in ("dense", "topk 100", "adatopk 100"):
        seconds = {item["planner"]: item["step_seconds"] for item in runs if item["codec"] == codec}
        assert seconds["auto"] <= min(seconds.values())
    assert len(report.figures["gains"]) == len(report.figures["text_gains"]) == 4
    assert {item["devices"] for item in runs if item["planner"] == "op_fence as written"} == {4}, "all devices"
