"""The page on benchmarks has every benchmark and every result, and its tables are those of the results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from benchmarks.harness.catalog import BENCHMARKS
from farflung.units import Seconds

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
RESULTS = sorted((DOCS / "results").glob("*.json"))
#: Their answer is one number, or a count in which all are equal: a figure shows no more.
WITHOUT_FIGURE = {
    "chain",
    "exactness",
    "fuzz",
    "fuzz-decoders",
    "fuzz-graphs",
    "resume",
    "silent-connections",
    "simulator",
    "trace-cost",
}


def figures(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))["figures"]
    return found


def rows(text: str, columns: int) -> list[list[str]]:
    """The tables of ``text`` with so many columns, cell by cell, without heads."""
    found = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in found if len(row) == columns and set(row[0]) != {"-"}][1:]


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_benchmark_has_a_section(name: str) -> None:
    assert section(name), f"docs/benchmarks.md has no section {name}"


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_section_has_question_answer_figure_and_command(name: str) -> None:
    question, answer, *_ = section(name).strip().split("\n\n")
    assert question.endswith("?")
    assert re.fullmatch(r"\*\*[^*]+\*\*", answer)
    assert "\nMethod: " in section(name)
    assert f"python -m benchmarks {name}" in section(name)
    figured = re.search(r"^!\[[^]]+\]\(results/[\w-]+\.svg\)$", section(name), re.MULTILINE) is not None
    stored = any(json.loads(result.read_text(encoding="utf-8"))["benchmark"] == name for result in RESULTS)
    assert figured == (stored and name not in WITHOUT_FIGURE)


def test_the_overview_names_every_benchmark_and_those_without_a_result() -> None:
    overview = " ".join(PAGE.partition("\n## ")[0].split())
    assert sorted(set(re.findall(r"\[([\w-]+)\]\(#\1\)", overview))) == list(BENCHMARKS)
    (lacking,) = re.findall(r"processor and load\. (.*?) have no stored result yet", overview)
    stored = {json.loads(result.read_text(encoding="utf-8"))["benchmark"] for result in RESULTS}
    assert re.findall(r"`([\w-]+)`", lacking) == [name for name in BENCHMARKS if name not in stored]


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.stem)
def test_every_result_is_linked_and_whole(result: Path) -> None:
    document = json.loads(result.read_text(encoding="utf-8"))
    assert f"(results/{result.name})" in section(document["benchmark"])
    assert document["settings"]["quick"] is False
    assert document["figures"]
    assert document["environment"]["load_before"]


def test_the_table_of_strategies() -> None:
    said = {row[0]: row[1:] for row in rows(section("sync-strategies"), 7)}
    measured = figures("sync-strategies")["strategies"]
    assert said.keys() == measured.keys()
    for name, row in said.items():
        one = measured[name]
        keys = ("bytes_per_parameter_per_step", "loss", "gap", "loss_range", "model_step_backwards", "extra_copies")
        for cell, value in zip(row, [one[key] for key in keys], strict=True):
            digits = len(cell.partition(".")[2])
            assert float(cell) == pytest.approx(value, rel=0.05 if "e" in cell else 0.002, abs=0.6 * 10**-digits), (name, cell)


def test_what_tracing_costs() -> None:
    found = figures("trace-cost")
    micro = found["microseconds"]
    said = " ".join(section("trace-cost").split())
    assert f"{micro['note']:.1f} us to note and {micro['pack']:.1f} us to pack" in said
    assert f"{found['wire_bytes']:.0f} bytes on the wire, {found['memory_bytes']:.0f} bytes of memory" in said
    assert f"{100 * found['share']:.2f} %." in said
    assert f"takes {micro['broker']:.0f} us for each span, {8 * 197 * micro['broker'] / 1e3:.0f} ms for such a step" in said
    assert f"(about {micro['note']:.0f} microseconds for each entry" in (DOCS / "traces.md").read_text(encoding="utf-8")


def test_the_start_up_time_of_commands() -> None:
    found = figures("startup")
    said = rows(section("startup"), 4)
    assert len(said) == len(found["ratios"])
    for row, middle, ratio in zip(said, found["median_seconds"].values(), found["ratios"].values(), strict=True):
        assert row[1:3] == [f"{1e3 * middle:.0f}", f"{ratio:.2f}"]


def test_by_how_much_predictions_are_off() -> None:
    found = figures("prediction")
    text = " ".join(section("prediction").split())
    assert f"median {found['median_error']:.1%}, 90th percentile {found['error_90']:.1%}".replace("%", " %") in text
    grids = [100 * trial["error"] for trial in found["trials"] if trial["replicas"] > 1]
    assert f"Grids are off by {min(grids):+.1f} to {max(grids):+.1f} %" in text


@pytest.mark.parametrize("name", ["loss-study", "loss-study-replicas"])
def test_the_table_of_fresh_seeds(name: str) -> None:
    models, phases = {"gpt": "GPT", "resnet18": "ResNet"}, {"scratch": "from scratch", "fine-tuning": "fine-tuned"}
    for row in figures(name)["means"]:
        gaps = ", ".join(f"{100 * gap:+.1f}" for gap in row["gaps"]) if row["variant"] != "dense" else f"{row['seeds']} seeds"
        case = f"| {models[row['model']]}, {row['way']}, {phases[row['phase']]} | {row['variant']} | 1/{row['ratio']:.1f} |"
        assert f"{case} {row['loss']:.3f} | {row['gap']:+.1%} | {gaps} |" in section("loss-study")


def test_the_table_of_dtfm() -> None:
    runs = figures("dtfm")["runs"]
    table = rows(section("dtfm"), 7)
    assert len(table) == len(runs) == 6
    systems = ("dtfm", "random_grid", "Megatron-LM", "Megatron-LM, random ranks", "ZeRO-3", "DeepSpeed, random ranks")
    for run, (_, *cells) in zip(runs, table, strict=True):
        for name, cell in zip(systems, cells, strict=True):
            value = run["systems"][name]["step_seconds"]
            assert float(cell.removesuffix(" s").replace(",", "")) == pytest.approx(value, rel=0.01), (run["case"], name)


def test_the_table_of_larger_models_of_dtfm() -> None:
    found = [run for name in ("dtfm", "dtfm-larger") for run in figures(name)["runs"]]
    runs = {(run["case"], run["model"], str(run["layers"]), f"{run['batch']:,}"): run for run in found}
    table = rows(section("dtfm"), 10)
    assert len(table) >= len(found) - 4, "of the first result, cases 1 to 4 are left out"
    for case, model, layers, batch, *cells in table:
        run = runs["dtfm-case5" if case == "5" else "fluidstack", model.replace(" B", "b"), layers, batch]
        systems = ("dtfm", "random_grid", "Megatron-LM, random ranks", "DeepSpeed, random ranks")
        assert cells[:4] == [f"{run['systems'][name]['pflops']:.2f}" for name in systems]
        assert cells[4] == f"{100 * run['systems']['dtfm']['pflops'] / run['peak_pflops']:.1f} %"


def test_the_table_of_fusionllm() -> None:
    runs = {
        (one["model"], one["topology"], one["planner"], one["codec"]): one["step_seconds"] for one in figures("fusionllm")["runs"]
    }
    table = rows(section("fusionllm"), 8)
    assert len(table) == 30
    for model, testbed, planner, *cells in table:
        for codec, cell in zip(("dense", "topk 100", "topk 1000", "adatopk 100", "adatopk 1000"), cells, strict=True):
            value = runs[model, f"fusionllm-{testbed.replace(' ', '')}", planner.replace("`", ""), codec]
            assert float(Seconds.parse(cell)) == pytest.approx(value, rel=0.01), (model, testbed, planner, codec)


def test_how_many_devices_and_gains_fusionllm_has() -> None:
    found, text = figures("fusionllm"), " ".join(section("fusionllm").split())
    used = {name: [run["devices"] for run in found["runs"] if run["planner"] == name] for name in ("op_fence", "auto")}
    ours, auto = (f"{min(counts)} to {max(counts)}" for counts in used.values())
    assert f"`op_fence` uses {ours} devices, and `auto` {auto}:" in text
    papers = (DOCS / "papers.md").read_text(encoding="utf-8")
    resnets = [one for one in found["runs"] if one["planner"] == "op_fence" and one["model"] != "gpt2-xl"]
    adapted = [one["devices"] for one in resnets if one["codec"].startswith("adatopk")]
    assert f"and `op_fence` uses {min(adapted)} to {max(adapted)} of them" in papers

    def gains(key: str, models: str, digits: int) -> str:
        pairs = [(name, gain) for name, gain in found[key].items() if name.startswith(models)]
        ends = []
        for dense in (True, False):
            some = [gain for name, gain in pairs if ("dense" in name) == dense]
            low, high = (f"{one:,.0f}" if one >= 10 else f"{one:.{digits}f}" for one in (min(some), max(some)))
            ends.append(f"{low} to {high} times")
        return " | ".join(ends)

    for digits, row, key, models in (
        (2, "`op_fence`, whole step", "gains", ""),
        (1, "`op_fence`, equation (8)", "forward_gains", ""),
        (2, "as written, GPT2-XL, whole step", "text_gains", "gpt2-xl"),
        (2, "as written, ResNets, whole step", "text_gains", "resnet"),
    ):
        assert f"| {row} | {gains(key, models, digits)} |" in text


def test_the_table_of_replicas() -> None:
    (case,) = figures("replicas")["cases"]
    names = {"torch DDP": "torch ddp", "torchft, local SGD": "torchft local_sgd", "torchft, DiLoCo": "torchft diloco"}
    table = rows(section("replicas"), 5)
    assert len(table) == len(case["ratios"])
    for library, theirs, strategy, ours, ratio in table:
        name = names.get(library, "hivemind")
        assert theirs == f"{median(case['seconds'][name]):.2f} s"
        assert ours == f"{median(case['seconds'][strategy]):.2f} s"
        assert ratio == f"{case['ratios'][name]:.2f}"


def test_the_table_of_losses_for_several_periods() -> None:
    found = figures("sync-loss-periods")
    table = rows(section("sync-loss"), 4)
    assert {row[0].replace("`", "") for row in table} == found["step_seconds"].keys()
    for name, seconds, *losses in table:
        label = name.replace("`", "")
        assert seconds == f"{found['step_seconds'][label]:.1f}"
        assert losses == [f"{found['curves'][task][label][-1]['loss']:.3f}" for task in ("text", "images")]


def test_the_table_of_losses_on_32_members() -> None:
    table = rows(section("sync-loss"), 6)
    found = {task: figures(f"sync-loss-32-{task}") for task in ("text", "images")}
    assert len(table) == sum(len(one["step_seconds"]) for one in found.values())
    for task, name, seconds, loss, divergence, whole in table:
        label, one = name.replace("`", ""), found[task]
        points = one["curves"][task][label]
        assert seconds == f"{one['step_seconds'][label]:.2f}"
        assert loss == f"{points[-1]['loss']:.3f}"
        assert divergence == f"{fmean(point['divergence'] for point in points):.2f}"
        assert whole == f"{one['time_to_loss'][task][label]:.0f}"


def test_the_table_of_the_losses_of_fusionllm() -> None:
    models = {"ResNet-18": "resnet-18", "ResNet-101": "resnet-101", "GPT, fine-tuned": "gpt"}
    table = rows(section("fusionllm-loss"), 7)
    assert len(table) == 9
    for model, stages, name, size, *cells in table:
        (found,) = figures(f"fusionllm-loss-{models[model]}")["models"].values()
        one, dense = found["variants"][name], found["variants"]["dense"]["losses"][-1]
        assert (stages, size) == (str(found["stages"]), f"1/{one['ratio']:.1f}")
        last = one["losses"][-1]
        said = ["-", "diverged", "-"] if last is None else [f"{last:.3f}", f"{last / dense - 1:+.1%}", f"{one['held_out']:.3f}"]
        assert cells == [cell.replace("%", " %") for cell in said]


def test_what_a_soak_of_members_found() -> None:
    soak, text = figures("members-soak")["soak"], " ".join(section("members").split())
    growth, end = soak["growth"], soak["end"]
    assert f"{soak['replaced']:,} members went and came" in text
    assert f"the broker had {growth['descriptors']:.2f} times the descriptors, {growth['memory']:.2f} times the memory" in text
    assert f"({end['memory'] / 1e6:.0f} MB) and {end['threads']} threads instead of {soak['begin']['threads']}" in text


def test_the_roles_of_servers_in_hybrid_ps() -> None:
    roles = [run for run in figures("hybrid-ps")["roles"] if run["stages"] > 1 and run["with_several_servers"]]
    ratios = sorted(run["both"] / run["roles"] for run in roles)
    text = " ".join(section("hybrid-ps").split())
    assert f"In {len(roles)} plans, a stage has several servers." in text
    said = f"{ratios[0]:.3f}, {median(ratios):.3f} and {ratios[-1]:.3f} times"
    assert f"| least, median, most | {said} |" in text


def test_the_demo_s_table_of_codecs() -> None:
    """By ``python -m benchmarks loss``."""
    phases = figures("loss")["phases"]
    table = rows((DOCS / "demo.md").read_text(encoding="utf-8"), 7)
    assert len(table) == 9
    for name, size, *cells in table:
        variant = name.lower().replace("-", "").replace(" ", "-")
        scratch, tuned = phases["scratch"][variant], phases["fine-tuning"][variant]
        assert float(size) == pytest.approx(scratch[-1]["bytes"] / scratch[-1]["step"] / 1e6, abs=0.06)
        wanted = [(scratch, 30), (scratch, 60), (scratch, 120), (tuned, 20), (tuned, 40)]
        for cell, (rounds, step) in zip(cells, wanted, strict=True):
            assert float(cell) == pytest.approx(next(one["eval_loss"] for one in rounds if one["step"] == step), abs=0.0051)


def test_the_table_of_losses_over_bytes() -> None:
    said = {row[0].replace("` at ", "-").replace("adatopk` ", "adatopk").strip("`"): row[1:] for row in rows(section("loss"), 5)}
    phases = figures("loss-bytes")["phases"]
    steps = {"scratch": 300, "fine-tuning": 100}
    assert {name.replace("` at ", "-") for name in said} == set(phases["scratch"])
    for name, row in said.items():
        cells = iter(row)
        for phase, count in steps.items():
            last = phases[phase][name][-1]
            assert float(next(cells)) == pytest.approx(last["eval_loss"], rel=5e-4)
            assert float(next(cells)) == pytest.approx(last["bytes"] / count / 1e6, rel=5e-3)


def test_the_readme_says_what_was_measured() -> None:
    text = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    ratios = figures("pipeline")["cases"][0]["ratios"]
    dense, strong = re.findall(r"it was ([\d.]+) times as fast|model ([\d.]+) times as fast as torch pipelining", text)
    assert float(dense[1]) == round(ratios["dense auto"], 1)
    assert float(strong[0]) <= ratios["adatopk"] < float(strong[0]) + 1
    assert f"1F1B, the factor is {ratios['dense']:.1f}" in text
    assert "its loss is within 2 % of that without compression (*dense*) in seven of eight cases" in text
    assert "Links then carry 1/8 to 1/100 of the bytes" in text
    auto = [row for row in figures("loss-study")["means"] if row["variant"] == "auto"]
    assert (sum(row["gap"] <= 0.02 for row in auto), len(auto)) == (7, 8)
    assert min(row["ratio"] for row in auto) >= 8
    assert max(row["ratio"] for row in auto) >= 100


def test_the_table_of_models_that_work() -> None:
    found = figures("coverage")["models"]
    table = rows(section("coverage"), 6)
    assert [row[0] for row in table] == ["torchvision", "transformers"]
    for library, *cells in table:
        results = [one["result"] for one in found if one["library"] == library]
        counts = [results.count(name) for name in ("equal", "different", "refused", "not runnable")]
        assert [int(cell) for cell in cells] == [len(results) - counts[3], *counts]


def test_the_table_of_dreamddp() -> None:
    runs = figures("dreamddp")["table_1"]
    methods = ("asc_wfbp", "local_sgd", "equal_number", "dreamddp", "free")
    table = rows(section("dreamddp"), 8)
    assert [row[0] for row in table] == [f"{run['model']}, {run['workers']}" for run in runs]
    for run, (_, *cells) in zip(runs, table, strict=True):
        ours, paper = run["seconds"], run["paper"]
        for method, cell in zip(methods, cells, strict=False):
            printed = f" ({paper[method]:.2f})" if method in paper and method != "local_sgd" else ""
            assert cell == f"{ours[method]:.2f}{printed}", (run["model"], run["workers"], method)
        for slow, cell in zip(("local_sgd", "asc_wfbp"), cells[5:], strict=True):
            assert cell == f"{ours[slow] / ours['dreamddp']:.2f} ({paper[slow] / paper['dreamddp']:.2f})"


def test_the_table_of_hybrid_ps() -> None:
    runs = {(run["model"], run["case"]): run["seconds"] for run in figures("hybrid-ps")["table_2"]}
    table = rows(section("hybrid-ps"), 6)
    assert len(table) == len(runs)
    for name, *cells in table:
        model, _, case = name.lower().partition(", ")
        assert [f"{value:,.0f}" for value in runs[model, int(case)].values()] == cells


def test_what_members_cost() -> None:
    found = figures("members")
    text = section("members")
    planned, asked = ([one[key] for one in found["planning"]] for key in ("seconds", "status_seconds"))
    for row in (
        f"{100 * found['cpu']:.0f} % of a core | 30 %",
        f"{found['memory'] / 1e9:.2f} GB | 1.5 GB",
        f"{found['threads']}, {found['descriptors']:,}",
        f"{min(planned):.1f} to {max(planned):.1f} s",
        f"{max(asked):.2f} s",
        f"{max(found['status_seconds']):.2f} s | 1 s",
        f"{max(found['join_seconds']):.2f} s | 1 s",
        f"{max(found['death_seconds']['frozen']):.2f} s | the lease (5 s) plus 1 s",
    ):
        assert f"| {row} |" in text


def test_the_tables_of_serving_sites_and_takeover() -> None:
    serving, sites, takeover = figures("serving"), figures("sites"), figures("takeover")
    single, several = (serving[f"{load}_tokens_per_second"] for load in ("single", "several"))
    assert f"| {serving['equal_tokens']:,} of 1,000 |" in section("serving")
    assert f"| {single / serving['bound_tokens_per_second']:.2f} | 0.9 |" in section("serving")
    assert f"| {several / single:.1f} | 5 |" in section("serving")
    for order, words in (("job's order", "in the job's order"), ("any order", "in any order")):
        assert f"{words} | {sites['ratios'][f'site, {order}']:.2f} |" in section("sites")
    assert f"| {max(takeover['leads_seconds']):.1f} s | 15 s |" in section("takeover")
    assert f"next step, at most | {max(takeover['trains_seconds']):.1f} s |" in section("takeover")
