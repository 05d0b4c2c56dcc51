"""``farflung status``: one short line for each run, the whole of one run on request."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from farflung.cli.cluster import status as command
from farflung.cli.main import main

CAUSE = "device 'attic' needs 12 GB and has 8 GB: it lacks 4 GB (most is optimizer: 6 GB); add a device or memory"
ROW = {"job": "tiny", "state": "finished", "step": 4, "steps": 4, "loss": 2.5, "cause": None}
MEMBER = {
    "name": "attic",
    "address": "192.0.2.1:7000",
    "kind": "cpu",
    "memory": 8e9,
    "speed": 4e10,
    "speed_factor": 0.625,
    "overhead": 2.5e-5,
    "run": None,
    "state": "standby",
    "generation": 3,
    "silence": 0.5,
    "paused": False,
    "parting": "",
    "bandwidth": None,
}
RUNS = [
    ROW | {"run": "run-1"},
    ROW | {"run": "run-2", "state": "failed", "cause": CAUSE},
    ROW | {"run": "run-3", "cause": "short"},
]


class Broker:
    """What a client's broker would answer, with ``more`` in addition."""

    more: ClassVar[dict[str, Any]] = {}

    def status(self) -> dict[str, Any]:
        return {"members": [MEMBER], "runs": RUNS, **self.more}

    def close(self) -> None:
        pass


def status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    monkeypatch.setattr(command, "open_client", lambda ticket, home, **options: Broker())
    with pytest.raises(SystemExit) as over:
        main(["status", *arguments])
    return over.value.code, *capsys.readouterr()


def test_a_run_is_one_short_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = status(monkeypatch, capsys)
    lines = out.splitlines()
    assert len(lines) == 6
    assert lines[3].endswith("step 4/4  loss 2.5000")
    assert lines[4].endswith("; device 'attic' needs 12 GB and has 8 GB: it lacks 4 GB... (see: status run-2)")
    assert lines[5].endswith("; short")
    assert max(map(len, lines)) < 160


def test_what_a_run_waits_for_and_what_was_before_are_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cause = "worker b fails: there is no folder (/home/somebody/a-very-long-path/to/data); use join --data"
    for key, value in {"state": "waiting", "loss": None, "needs": 2, "ahead": 1, "cause": cause}.items():
        monkeypatch.setitem(RUNS[1], key, value)
    _, out, _ = status(monkeypatch, capsys)
    assert out.splitlines()[4].endswith(
        "step 4/4; needs 2 idle workers, after 1 other run; before: worker b fails: there is no folder... (see: status run-2)"
    )


def test_what_is_slow_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(RUNS[2], "slow", ["attic", "attic -> desk"])
    _, out, _ = status(monkeypatch, capsys)
    assert ["loss 2.5000  slow: attic, attic -> desk" in line for line in out.splitlines()[3:]] == [False, False, True]


def test_one_run_is_shown_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = status(monkeypatch, capsys, "run-2")
    assert out.splitlines()[1] == CAUSE
    _, out, _ = status(monkeypatch, capsys, "run-2", "--json")
    assert json.loads(out) == RUNS[1]


def test_an_unknown_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = status(monkeypatch, capsys, "run-9")
    assert code == 2
    assert err == "farflung: there is no run 'run-9'; known runs: run-1 (tiny), run-2 (tiny), run-3 (tiny)\n"
    code, _, err = status(monkeypatch, capsys, "attic")
    assert code == 2
    assert err == "farflung: 'attic' is a worker, not a run: farflung status shows the workers, farflung logs attic its log\n"


def test_a_worker_is_shown_with_what_its_warm_up_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = status(monkeypatch, capsys)
    line = next(line for line in out.splitlines() if "attic" in line and "192.0.2.1" in line)
    assert "40 GFLOP/s" in line
    assert line.endswith("  standby")
    _, out, _ = status(monkeypatch, capsys, "--verbose")
    assert "  standby  (reaches 62% of its peak speed, 25 us per operator, isolation unknown)" in out
    places = {"region": "attic", "disk": 5e9, "isolation": "full", "precisions": ["bf16", "float32"]}
    places["versions"] = {"engine": "torch 2.13.0+cpu"}
    for key, value in places.items():
        monkeypatch.setitem(MEMBER, key, value)
    _, out, _ = status(monkeypatch, capsys, "--verbose")
    assert "25 us per operator, precisions bf16, float32, isolation full, region attic, 5 GB free on disk)" in out
    assert " cpu   torch 2.13.0 " in out


def test_the_whole_cause_of_a_lost_worker_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cause = "lost desk: the connection broke off (check that its machine is up)"
    monkeypatch.setattr(Broker, "more", {"gone": [{"name": "desk", "cause": cause}]})
    _, out, _ = status(monkeypatch, capsys)
    assert out.splitlines()[2].endswith(f"gone  {cause}")


def test_one_run_is_shown_with_time_evaluation_and_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"seconds": 90.0, "evaluation": {"step": 4, "loss": 2.25}, "divided": [0, 2], "together": [1]}
    found["checkpoint"] = "/runs/run-1/checkpoints/4"
    for key, value in found.items():
        monkeypatch.setitem(RUNS[0], key, value)
    _, out, _ = status(monkeypatch, capsys, "run-1")
    assert out.splitlines()[1:] == [
        "  training time  1 min 30 s",
        "  evaluation     loss 2.2500 after step 4",
        "  sites          ranks divide the parameters of stages 0, 2",
        "  sites          ranks compute each micro-batch of stage 1 together",
        "  checkpoint     /runs/run-1/checkpoints/4",
    ]


def test_the_headline_counts_every_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Empty(Broker):
        def status(self) -> dict[str, Any]:
            gone = [{"name": name, "cause": "it left"} for name in "abcde"]
            return {"members": [], "joining": ["f"], "gone": gone, "runs": []}

    monkeypatch.setattr(command, "open_client", lambda ticket, home, **options: Empty())
    with pytest.raises(SystemExit):
        main(["status"])
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "0 workers, 1 joining, 5 gone"
    assert len(out) == 1 + 6 + 1


def test_a_cap_is_shown_in_bits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(MEMBER, "bandwidth", 2.5e6)
    _, out, _ = status(monkeypatch, capsys)
    assert "(sends at most 20 Mbit/s)" in out


@pytest.mark.parametrize(
    ("nat", "note"),
    [
        ("symmetric", "(symmetric NAT: connects directly to machines without NAT or behind an open one, else through a relay)"),
        ("none", ""),
        (None, ""),
    ],
)
def test_the_nat_of_a_worker_is_shown_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], nat: str | None, note: str
) -> None:
    monkeypatch.setitem(MEMBER, "nat", nat)
    _, out, _ = status(monkeypatch, capsys)
    assert note in out
    assert ("NAT" in out) == bool(note)
