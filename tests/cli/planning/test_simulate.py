"""``farflung simulate``: from a plan to a table, JSON and a trace; and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.commands.planned_jobs import JOB, run


@pytest.fixture
def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, Path]:
    job, plan = tmp_path / "job.toml", tmp_path / "plan.json"
    job.write_text(JOB)
    _, out, _ = run(["plan", job, "--topology", "homogeneous-2", "--planner", "equal_compute", "--json"], capsys)
    plan.write_text(out)
    return plan, job


NAT = """
[default]
latency = "5 ms"
bandwidth = "80 Mbit/s"
"""
DEVICE = '[[device]]\nname = "{0}"\nregion = "{0}"\nmemory = "4 GB"\nspeed = "1 TFLOP/s"\n{1}\n'


def test_a_plan_shows_relays_and_refuses_where_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, far, near = tmp_path / "job.toml", tmp_path / "far.toml", tmp_path / "near.toml"
    job.write_text(JOB)
    near.write_text(NAT + DEVICE.format("a", "nat = true") + DEVICE.format("b", "nat = true"))
    far.write_text(near.read_text() + DEVICE.format("r", ""))
    base: list[str | Path] = ["plan", job, "--planner", "equal_number", "--topology"]
    code, out, _ = run([*base, far], capsys)
    assert code == 0
    assert "a and b cannot connect directly: their traffic goes through r (80 Mbit/s, 10 ms there; 80 Mbit/s, 10 ms back)" in out
    code, out, _ = run([*base, far, "--json"], capsys)
    assert json.loads(out)["relays"][0]["relays"] == ["r"]
    code, _, err = run([*base, near], capsys)
    assert code == 5
    assert "devices 'a' and 'b' can't reach each other" in err


def test_table_json_trace_and_bill(planned: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, job = planned
    prices, trace = tmp_path / "prices.toml", tmp_path / "trace.json"
    prices.write_text('energy_price = 0.3\n[default]\nbusy_watts = 60\nhour = 1.5\n[[traffic]]\nfrom = "*"\ngigabyte = 0.1\n')
    base: list[str | Path] = ["simulate", plan, "--job", job, "--topology", "homogeneous-2"]
    code, out, _ = run([*base, "--steps", "3", "--prices", prices], capsys)
    assert code == 0
    assert "simulated step: " in out
    assert "device-0 -> device-1" in out
    assert re.search(r"cost of \d+ steps?: \S+ USD, \S+ USD per 1000 samples \(rent ", out)
    code, out, _ = run([*base, "--json", "--trace", trace], capsys)
    body = json.loads(out)
    assert body["step_seconds"] > 0
    assert {use["device"] for use in body["devices"]} == {"device-0", "device-1"}
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"compute", "send", "receive"} <= {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["name"] for e in events if e["ph"] == "s"} >= {"forward", "backward"}
    assert {e["name"] for e in events if e.get("cat") == "compute"} >= {"F0", "B2", "update"}
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"device-0", "device-1"}
    assert run([*base, "--jitter", "0.2", "--seed", "1", "--json"], capsys)[1] != out


def test_the_folder_of_a_run_is_enough(planned: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, job = planned
    folder = tmp_path / "run"
    folder.mkdir()
    parts = json.loads(plan.read_text())
    (folder / "plan.json").write_text(json.dumps(parts["plan"]))
    (folder / "job.json").write_text(json.dumps(parts["job"]))
    (folder / "graph.json").write_text(run(["graph", job, "--format", "json"], capsys)[1])
    code, out, err = run(["simulate", folder], capsys)
    assert code == 2
    assert "no topology: name a TOML file or a preset with --topology" in err
    code, out, _ = run(["simulate", folder, "--topology", "homogeneous-2"], capsys)
    assert code == 0
    assert "simulated step: " in out
    (tmp_path / "home" / "runs").mkdir(parents=True)
    folder.rename(tmp_path / "home" / "runs" / "run-1")
    code, named, err = run(["simulate", "run-1", "--home", tmp_path / "home", "--topology", "homogeneous-2"], capsys)
    assert (code, named) == (0, out), err
    code, _, err = run(["simulate", "run-2", "--home", tmp_path / "home"], capsys)
    assert code == 2
    assert f"there is no run 'run-2' in {tmp_path / 'home' / 'runs'}, and no such folder; runs there: run-1" in err


def test_what_is_refused(planned: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, job = planned
    base: list[str | Path] = ["simulate", plan, "--topology", "homogeneous-2"]
    assert "can't be read: No such file" in run(["simulate", tmp_path / "gone.json"], capsys)[2]
    other = tmp_path / "other.toml"
    other.write_text(JOB.replace("layers = 2", "layers = 3"))
    assert "the plan is for another graph" in run([*base, "--job", other], capsys)[2]
    assert "jitter of compute must be from 0 (none) to 5, got -1" in run([*base, "--job", job, "--jitter", "-1"], capsys)[2]
    assert "setting steps must be from 1" in run([*base, "--job", job, "--steps", "0"], capsys)[2]
    gone = tmp_path / "none" / "trace.json"
    assert "can't be written: No such file" in run([*base, "--job", job, "--trace", gone], capsys)[2]
    prices = tmp_path / "prices.toml"
    for text, message in (
        ("[default]\nwatts = 3\n", "default: unknown watts; known are busy_watts, hour, idle_watts"),
        ('energy_price = "x"\n', "energy_price must be a number from 0 on, got 'x'"),
        ("[[traffic]]\nprice = 3\n", r"traffic[0]: unknown price; known are from, gigabyte, to"),
        ("traffic = 5\n", "traffic must be a list of tables, got 5; write each as [[traffic]]"),
        ("[device]\nmatch = 'a'\n", "device must be a list of tables, got {'match': 'a'}; write each as [[device]]"),
        ("device = [3]\n", "device[0]: must be a table, got 3; known are busy_watts, hour, idle_watts, match"),
        ("a = ", "cannot read the price file"),
        ("[[traffic]]\nfrom = 'eu'\n", "traffic[0].from: topology 'homogeneous-2' has no region 'eu'; known are site, *"),
        ("[[traffic]]\n[[traffic]]\nto = 'eu'\n", "traffic[1].to: topology 'homogeneous-2' has no region 'eu'"),
    ):
        prices.write_text(text)
        assert message in run([*base, "--job", job, "--prices", prices], capsys)[2]


def test_options_are_read_before_the_model(
    planned: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a model was captured")

    monkeypatch.setattr("farflung.api.submission.bundle_job", never)
    plan, job = planned
    for options, message in (
        (("--steps", "0"), "setting steps must be from 1"),
        (("--jitter", "-1"), "jitter of compute must be from 0 (none) to 5, got -1"),
        (("--mtbf", "abc"), "--mtbf: cannot read 'abc' as a duration"),
        (
            ("--prices", "gone.toml"),
            "cannot read the price file gone.toml: No such file or directory; give the path of a TOML file",
        ),
    ):
        code, _, err = run(["simulate", plan, "--job", job, "--topology", "homogeneous-2", *options], capsys)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1


def test_plan_compares_what_could_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    base: list[str | Path] = ["plan", job, "--topology", "local4-two-regions", "--planner", "auto", "--evaluations", "5"]
    changes = ["--what-if", "remove east", "--what-if", "add 1 like west-0"]
    code, out, _ = run([*base, *changes], capsys)
    assert code == 0
    rows = out.split("what if", 1)[1].splitlines()
    assert [row.split("  ")[0] for row in rows[1:4]] == ["no change", "remove east", "add 1 like west-0"]
    code, out, _ = run([*base, *changes, "--json", "--exclude", "west-0", "--stages", "1"], capsys)
    body = json.loads(out)
    assert body["plan"]["planner"] == "auto"
    assert len(body["plan"]["stages"]) == 1
    assert set(body["what_if"]) == {"remove east", "add 1 like west-0"}
    assert body["what_if"]["remove east"]["devices"] == ["west-1"]
    code, _, err = run(["plan", job, "--topology", "homogeneous-2", "--planner", "equal_number", "--seconds", "1"], capsys)
    assert code == 2
    assert "--seconds is for the planner auto: add --planner auto" in err


def test_a_plan_file_has_the_settings_of_its_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, plan = tmp_path / "job.toml", tmp_path / "plan.json"
    job.write_text(JOB + '[optimizer]\nname = "adamw"\n')
    plan.write_text(run(["plan", job, "--topology", "homogeneous-2", "--planner", "equal_compute", "--json"], capsys)[1])
    named = run(["simulate", plan, "--job", job, "--topology", "homogeneous-2", "--json"], capsys)
    assert named[0] == 0
    assert run(["simulate", plan, "--json"], capsys)[:2] == named[:2], "job and topology are those of the plan file"
    job.write_text(JOB.replace('"gpt"', '"gpt.py:make"'))
    parts = json.loads(plan.read_text())
    parts["job"]["model"]["recipe"] = "model.py:make"
    plan.write_text(json.dumps(parts))
    code, _, err = run(["simulate", plan], capsys)
    assert code == 2
    assert "no graph.json beside the plan" in err, "a plan file does not run code"
    plan.write_text(json.dumps(parts["plan"]))
    code, _, err = run(["simulate", plan, "--topology", "homogeneous-2"], capsys)
    assert code == 2
    assert f"the plan in {tmp_path} names no job: add --job JOB.toml" in err


@pytest.mark.parametrize("text", ["no plan", "[]", '{"plan": {}}', '{"plan": 3}'])
@pytest.mark.parametrize("command", ["simulate", "graph", "plan"])
def test_a_file_that_is_no_plan(
    command: str, text: str, planned: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, (_, job) = tmp_path / "other.json", planned
    other.write_text(text)
    arguments: dict[str, list[str | Path]] = {
        "simulate": ["simulate", other, "--topology", "homogeneous-2"],
        "graph": ["graph", job, "--plan", other],
        "plan": ["plan", job, "--topology", "homogeneous-2", "--running", other],
    }
    code, _, err = run(arguments[command], capsys)
    assert code == 2
    assert f"{other} is not a plan file: " in err
    assert err.count("\n") <= 2


def test_an_unknown_planner_is_an_error_of_the_option(planned: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, job = planned
    code, _, err = run(["plan", job, "--topology", "homogeneous-2", "--planner", "foo"], capsys)
    assert code == 2
    assert err.startswith("farflung: --planner: unknown planner 'foo'")
    assert str(job) not in err


def test_deaths_use_the_rate_of_the_job(planned: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    plan, job = planned
    job.write_text(JOB.replace('name = "tiny"', 'name = "tiny"\nmtbf_hours = 0.5'))
    base: list[str | Path] = ["simulate", plan, "--job", job, "--topology", "homogeneous-2"]
    code, out, _ = run([*base, "--deaths", "5"], capsys)
    assert code == 0
    assert "a death every 15 min" in out
    assert "simulated deaths: 5 deaths" in out
    assert "a death every 1 min" in run([*base, "--mtbf", "2 min"], capsys)[1], "the option wins"


def test_a_hybrid_plan_is_simulated_with_its_helpers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, plan, topology = tmp_path / "job.toml", tmp_path / "plan.json", tmp_path / "topology.toml"
    job.write_text(JOB.replace("[model]", '[plan]\nhelpers = true\nschedule = "gpipe"\n[model]', 1))
    slow = DEVICE.replace("1 TFLOP/s", "1 MFLOP/s")
    topology.write_text(NAT + "".join(slow.format(name, "reliable = false" if name == "c" else "") for name in ("a", "b", "c")))
    _, out, _ = run(["plan", job, "--topology", topology, "--json"], capsys)
    plan.write_text(out)
    code, out, err = run(["simulate", plan, "--helper-loss", "0.5"], capsys)
    assert code == 0, err
    figure = r"\S+ \S+"
    lost = rf"; {figure} if each helper is lost in 50% of the steps"
    assert re.search(rf"with 1 helper: {figure} for a step, without helpers {figure}{lost}", out), out
    body = json.loads(run(["simulate", plan, "--helper-loss", "0.5", "--json"], capsys)[1])["helpers"]
    assert body["servers"].keys() == {"c"}
    assert body["step_seconds"] <= body["lossy_seconds"]


def test_a_chance_of_losses_needs_helpers(planned: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    plan, job = planned
    code, _, err = run(["simulate", plan, "--job", job, "--topology", "homogeneous-2", "--helper-loss", "0.5"], capsys)
    assert code == 2
    expected = "--helper-loss 0.5 needs a job with plan.helpers = true and a topology with unreliable devices; leave it out"
    assert expected in err
