"""``farflung plan``: explanations, drawings and limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support.commands.planned_jobs import JOB, run

CODEC = '[codec]\nname = "auto"\n'
SYNC = '[plan]\nreplicas = 2\n[sync]\nstrategy = "ssgd"\nsettings = { codec = "auto" }\n'
TOPOLOGY = "local4-two-regions"


def test_words_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    base: list[str | Path] = ["plan", job, "--topology", "home-lab", "--planner", "equal_number"]
    page, picture = tmp_path / "plan.html", tmp_path / "plan.svg"
    code, out, err = run([*base, "--explain", "--draw", page], capsys)
    assert code == 0
    assert f"drawn: {page}" in err
    for words in ("bottleneck: ", "idle time: ", "memory: ", "better planner: ", 'a new plan with --what-if "add 1 like '):
        assert words in out
        assert words.split('"')[0] in page.read_text()
    assert "Plan of tiny" in page.read_text()
    code, out, _ = run([*base, "--draw", picture], capsys)
    assert out.startswith("predicted step: "), "the answer comes first"
    lines = out.splitlines()
    assert [line.partition(":")[0] for line in lines[1:6]] == ["stages", "devices", "memory", "bottleneck", "to speed it up"]
    assert "equation" not in out
    assert lines[-1].startswith("more: -v prints all tables, --explain ")
    code, details, _ = run([*base, "-v"], capsys)
    assert details.splitlines()[:6] == lines[:6]
    assert "(FusionLLM, equation 2)" in details
    ET.parse(picture)
    code, out, _ = run([*base, "--no-explain"], capsys)
    assert "stage" in out
    assert "idle time: " not in out
    code, out, _ = run([*base, "--no-explain", "--json"], capsys)
    assert set(json.loads(out)) == {"plan", "job", "topology", "estimate"}
    code, out, _ = run([*base, "--explain", "--json"], capsys)
    assert json.loads(out)["why"]["held"][0]["factor"] >= 1
    code, _, err = run([*base, "--draw", tmp_path / "plan.pdf"], capsys)
    assert code == 2
    assert "a drawing ends in .html or .svg, got 'plan.pdf'" in err


def test_deaths_are_a_number_of_the_plan_and_of_the_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, plan = tmp_path / "job.toml", tmp_path / "plan.json"
    job.write_text(JOB)
    base: list[str | Path] = ["--topology", "local4-two-regions"]
    code, out, _ = run(["plan", job, *base, "--planner", "equal_number", "--explain", "--mtbf", "6 h", "--json"], capsys)
    body = json.loads(out)
    assert code == 0
    assert body["faults"]["rate"] == pytest.approx(4 / 21600)
    assert body["faults"]["deaths_to_go_on"] == 3
    plan.write_text(out)
    given = ["simulate", plan, "--job", job, *base]
    code, out, _ = run([*given, "--mtbf", "10 min", "--recovery", "20 s", "--away", "2 min", "--deaths", "500"], capsys)
    assert code == 0
    assert "machine deaths: a single death can lose the newest state of a stage" in out
    assert "simulated deaths: 500 deaths in " in out
    code, out, _ = run([*given, "--mtbf", "10 min", "--deaths", "50", "--json"], capsys)
    assert json.loads(out)["faults"]["injected"]["deaths"] == 50
    code, _, err = run([*given, "--mtbf", "soon"], capsys)
    assert "--mtbf: cannot read 'soon' as a duration" in err
    code, _, err = run([*given, "--mtbf", "0"], capsys)
    assert "--mtbf must be more than 0, got '0'" in err


def test_limits_hold_for_any_planner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, plan = tmp_path / "job.toml", tmp_path / "plan.json"
    job.write_text(JOB)
    base: list[str | Path] = ["plan", job, "--topology", "local4-two-regions", "--planner", "equal_number", "--json"]
    code, out, _ = run([*base, "--exclude", "west", "--data", "east-1"], capsys)
    assert code == 0
    stages = json.loads(out)["plan"]["stages"]
    assert {stages[0]["device"], stages[-1]["device"]} == {"east-1"}
    plan.write_text(out)
    again = run([*base, "--running", plan], capsys)[1]
    assert len(json.loads(again)["plan"]["stages"]) == 4  # this planner gives all devices their part
    job.write_text(JOB + '[limits]\nexclude = ["west-0"]\nstages = 2\n')
    found = json.loads(run(base, capsys)[1])["plan"]["stages"]
    assert len(found) == 2
    assert "west-0" not in {stage["device"] for stage in found}
    code, _, err = run([*base, "--exclude", "north"], capsys)
    assert code == 2
    assert "limits.exclude: topology 'local4-two-regions' has no device and no region 'north'; known are east, west" in err
    code, _, err = run([*base, "--unreliable", "never"], capsys)
    assert code == 2
    assert "limits.unreliable" in err


def test_a_codec_instead_of_that_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    base: list[str | Path] = ["plan", job, "--topology", TOPOLOGY, "--planner", "equal_number"]
    code, out, _ = run([*base, "--codec", "int8", "--json"], capsys)
    assert (code, json.loads(out)["job"]["codec"]["name"]) == (0, "int8")
    code, _, err = run([*base, "--codec", "itn8"], capsys)
    assert code == 2
    assert "codec.name = 'itn8' is unknown: did you mean 'int8'?" in err


def test_unknown_engines_are_refused_and_unstated_ones_are_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    base: list[str | Path] = ["plan", job, "--topology", TOPOLOGY, "--planner", "equal_number"]
    code, _, err = run([*base, "--engines", "tensorflow"], capsys)
    assert code == 2
    assert "limits.engines: unknown engine 'tensorflow': known are jax, " in err
    note = "note: limits.engines does not apply to 4 of 4 devices: the topology states no engine for them\n"
    code, _, err = run([*base, "--engines", "jax"], capsys)
    assert (code, note in err) == (0, True)
    assert note not in run(base, capsys)[2]
    job.write_text(JOB + '[limits]\nengines = ["torhc>=2.13"]\n')
    code, _, err = run(base, capsys)
    assert code == 2
    assert "limits.engines: unknown engine 'torhc': did you mean 'torch'? known are " in err


def planned(folder: Path, more: str, flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    job = folder / "job.toml"
    job.write_text(JOB.replace("[2, 2, 2]", "[2, 2]").replace("layers = 2, width = 8", "layers = 4, width = 64") + more)
    code, out, _ = run(["plan", job, "--topology", TOPOLOGY, "--planner", "equal_number", flag], capsys)
    assert code == 0
    return out


def test_codecs_of_links_have_their_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = planned(tmp_path, CODEC, "--explain", capsys)
    assert "codecs for training from scratch, error 0.2:" in out
    assert "1 -> 2, values: quantized(bits=4, block=256, rotate=1, scale=normal) in" in out
    assert "2 -> 1, gradients: quantized(bits=3, block=256, rotate=1, scale=normal) in" in out
    assert "at most 0.24 allowed" in out
    assert "codecs for" not in planned(tmp_path, '[codec]\nname = "int8"\n', "--explain", capsys)


def test_what_replicas_exchange_has_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "replicas exchange" in planned(tmp_path, SYNC, "--explain", capsys)
    document = json.loads(planned(tmp_path, SYNC, "--json", capsys))
    assert document["plan"]["sync"]["settings"]["codec"] != "auto"


DEVICE = """
[[device]]
name = "{name}"
memory = "{memory} B"
speed = "50 GFLOP/s"
offload = "10 GB"
offload_rate = "100 MB/s"
"""


def test_states_on_disks_are_a_line_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, topology = tmp_path / "job.toml", tmp_path / "pair.toml"
    deep = JOB.replace("layers = 2, width = 8", "layers = 12, width = 128")
    job.write_text(f'{deep}\n[optimizer]\nname = "adamw"\n')
    base: list[str | Path] = ["plan", job, "--topology", topology, "--planner", "equal_compute", "--no-explain"]

    def with_memory(memory: float) -> None:
        topology.write_text('name = "pair"\n' + "".join(DEVICE.format(name=name, memory=memory) for name in "ab"))

    with_memory(1e9)
    code, out, err = run([*base, "--json"], capsys)
    assert code == 0, err
    found = json.loads(out)["estimate"]
    assert found["offload"] is None
    states = min(stage["memory"]["optimizer"] for stage in found["stages"])
    with_memory(max(device["memory_bytes"] for device in found["devices"]) - 0.4 * states)
    code, out, err = run(base, capsys)
    assert code == 0, err
    assert re.search(r"^disk: +fits only with optimizer states on disk: [\d.]+ x slower \([\d.]+ MB\)$", out, re.MULTILINE)
    code, out, err = run([*base, "--json"], capsys)
    assert "optimizer" in {stage.get("offload") for stage in json.loads(out)["plan"]["stages"]}
    job.write_text(job.read_text() + '[plan]\noffload = "none"\n')
    code, _, err = run(base, capsys)
    assert code == 5
    assert 'allow disks (plan.offload = "auto", and farflung join --disk)' in err


SITE = """
[[device]]
name = "node"
memory = "{memory} B"
speed = "100 GFLOP/s"
ranks = 2
rank_rate = "100 MB/s"
rank_latency = "50 us"
"""


def test_divided_parameters_are_a_line_of_the_answer_and_of_its_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, topology = tmp_path / "job.toml", tmp_path / "site.toml"
    deep = JOB.replace("layers = 2, width = 8", "layers = 12, width = 128").replace("[2, 2, 2]", "[2, 2]")
    job.write_text(f'{deep}\n[plan]\nschedule = "1f1b"\nrecompute = "never"\n')
    base: list[str | Path] = ["plan", job, "--topology", topology, "--planner", "equal_compute"]
    topology.write_text('name = "one"\n' + SITE.format(memory=1e9))
    code, out, err = run([*base, "--json"], capsys)
    assert code == 0, err
    found = json.loads(out)["estimate"]
    assert found["shard"] is None
    topology.write_text('name = "one"\n' + SITE.format(memory=0.8 * found["devices"][0]["memory_bytes"]))
    code, out, err = run([*base, "--explain"], capsys)
    assert code == 0, err
    line = r"fits only with parameters divided among ranks: [\d.]+ x slower \([\d.]+ MB\)"
    assert re.search(rf"^sites: +{line}$", out, re.MULTILINE)
    assert re.search(rf"node is the fullest device, \d+% of its limit; {line}", out)
    code, out, err = run([*base, "--json"], capsys)
    assert [stage.get("shard") for stage in json.loads(out)["plan"]["stages"]] == ["parameters"]
    job.write_text(job.read_text() + 'shard = "none"\n')
    code, _, err = run(base, capsys)
    assert code == 5
    assert 'divide the parameters (plan.shard = "auto")' in err
