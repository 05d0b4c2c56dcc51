"""The ledger of runs: every sum is kept, losses are counted, and money follows prices."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farflung.cluster import Topology
from farflung.errors import DataError
from farflung.ledger import COLUMNS, RunLedger, ledger_csv, ledger_of, sum_of, totals
from farflung.ledger.entries import UNKNOWN
from farflung.ledger.words import HEAD, money, run_line, total_rows
from farflung.plan import Plan, Replica, estimate
from farflung.simulator import DevicePrice, PriceTable, TrafficPrice
from farflung.telemetry import RunFolder, StepRecord
from tests.support.records.written_runs import WrittenAttempt, write_run
from tests.support.steps.small_runs import small_graph, small_job, small_plan

NAMES = ("a", "b", "c", "d")
ALL = Topology.preset("local4-two-regions").rename(dict(zip(Topology.preset("local4-two-regions").names, NAMES, strict=True)))
PRICES = PriceTable(
    devices=(DevicePrice(match="a", busy_watts=100, idle_watts=10, hour=3.6), DevicePrice(match="b", hour=1.0)),
    traffic=(TrafficPrice(gigabyte=1e6),),
    energy_price=0.5,
    currency="EUR",
)


def replicated(first: tuple[str, str] = ("a", "b"), second: tuple[str, str] = ("c", "d")) -> Plan:
    """Two stages with two replicas each."""
    plan = small_plan((first[0], second[0]))
    copies = [tuple(Replica(device=name, first=i, end=i + 1) for i, name in enumerate(pair)) for pair in (first, second)]
    return replace(plan, stages=tuple(replace(stage, replicas=held) for stage, held in zip(plan.stages, copies, strict=True)))


def test_a_run_without_losses(tmp_path: Path) -> None:
    attempt = WrittenAttempt(plan=small_plan(("a", "c")), topology=ALL, first=0, steps=10)
    folder = write_run(tmp_path / "run-1", small_job(), [attempt])
    found = ledger_of(folder, PRICES)
    assert (found.steps, found.samples, found.wasted, found.bytes, found.recoveries) == (10, 80, 0, 2000, 0)
    a, c = found.entries
    assert (a.machine, a.region, c.machine, c.region) == ("a", "east", "c", "west")
    assert (a.samples, a.sent, a.received, a.member_seconds, a.busy_seconds) == (80, 1000, 1000, 10.0, 5.0)
    assert a.joules == 5 * 100 + 5 * 10
    assert a.rent == pytest.approx(3.6 * 10 / 3600)
    assert a.energy_cost == pytest.approx(550 / 3.6e6 * 0.5)
    assert a.traffic_cost == pytest.approx(1000 / 1e9 * 1e6)
    assert a.cost == a.rent + a.energy_cost + a.traffic_cost
    assert c.joules == 5 * 65 + 5 * 20, "typical watts of a processor, which no price file names"
    parts = estimate(small_graph(), attempt.plan, ALL, small_job()).replicas
    assert a.flops == pytest.approx((parts[0].forward_flops + parts[0].backward_flops) * 20)
    assert run_line(found) == "run-1 (small): 10 steps, 80 samples, 2 kB on links, 10.00 s"
    assert ledger_of(folder).entries[0].cost == 0.0


def test_a_machine_that_died_is_counted_and_its_steps_stay_its_own(tmp_path: Path) -> None:
    attempts = [
        WrittenAttempt(plan=small_plan(("a", "b")), topology=ALL, first=0, steps=6),
        WrittenAttempt(plan=small_plan(("a", "c")), topology=ALL.select(["a", "c", "d"]), first=4, steps=6, pause=20.0),
    ]
    found = ledger_of(write_run(tmp_path / "run-1", small_job(), attempts))
    entries = {entry.machine: entry for entry in found.entries}
    assert (found.steps, found.samples, found.wasted, found.recoveries, found.causes) == (10, 80, 16, 1, ("loss 2",))
    assert (entries["a"].samples, entries["b"].samples, entries["c"].samples) == (80, 32, 48)
    assert (entries["a"].wasted, entries["b"].wasted, entries["c"].wasted) == (16, 16, 0)
    assert (entries["a"].losses, entries["b"].losses) == (0, 1)
    assert entries["b"].member_seconds == 6.0, "it did not wait in the pause after its death"
    assert entries["a"].member_seconds == 32.0
    assert entries["b"].busy_seconds == 3.0, "repeated steps took time, too"
    assert sum(entry.sent for entry in found.entries) == 12 * 200


def test_a_folder_of_an_older_version_counts_what_it_does_not_know(tmp_path: Path) -> None:
    attempts = [
        WrittenAttempt(plan=small_plan(("a", "b")), topology=ALL, first=0, steps=6),
        WrittenAttempt(plan=small_plan(("a", "c")), topology=ALL, first=6, steps=4, pause=1.0),
    ]
    found = ledger_of(write_run(tmp_path / "run-1", small_job(), attempts, told=False))
    assert [(entry.machine, entry.samples) for entry in found.entries] == [(UNKNOWN, 48), ("a", 32), ("c", 32)]
    assert sum(entry.sent for entry in found.entries) == found.bytes == 2000


def test_skipped_steps_count_as_repeated_work(tmp_path: Path) -> None:
    attempt = WrittenAttempt(plan=small_plan(), topology=ALL, first=0, steps=5, skipped=frozenset({2}))
    found = ledger_of(write_run(tmp_path / "run-1", small_job(), [attempt]))
    assert (found.samples, found.wasted, found.steps) == (32, 8, 4)


def test_damaged_folders(tmp_path: Path) -> None:
    attempt = WrittenAttempt(plan=small_plan(), topology=ALL, first=0, steps=2)
    folder = write_run(tmp_path / "run-1", small_job(), [attempt])
    with folder.attempts.open("a") as file:
        file.write('{"attempt": 2, "pl')
    assert ledger_of(folder).samples == 16, "a line that a kill cut off"
    with folder.attempts.open("a") as file:
        file.write("\n")
    with pytest.raises(DataError, match="this line about an attempt is damaged"):
        ledger_of(folder)
    folder.attempts.unlink()
    folder.plan.write_text("x")
    with pytest.raises(DataError, match=r"plan\.json: the plan is not JSON"):
        ledger_of(folder)
    folder.plan.unlink()
    empty = ledger_of(folder)
    assert (empty.entries, empty.samples) == ((), 0), "the run waits for workers"
    folder.job.unlink()
    with pytest.raises(DataError, match=r"cannot read .*job\.json"):
        ledger_of(folder)


def test_names_from_elsewhere_are_no_formulas(tmp_path: Path) -> None:
    topology = ALL.rename({"a": "=cmd()"})
    attempt = WrittenAttempt(plan=small_plan(("=cmd()", "b")), topology=topology, first=0, steps=1)
    found = ledger_of(write_run(tmp_path / "run-1", small_job(name="@x"), [attempt]))
    rows = list(csv.DictReader(StringIO(ledger_csv([found], COLUMNS))))
    assert [(row["job"], row["machine"]) for row in rows] == [("'@x", "'=cmd()"), ("'@x", "b")]


def test_the_names_of_the_file_are_the_titles_of_the_table() -> None:
    head = ledger_csv([], COLUMNS).strip().split(",")
    assert head == [
        "run",
        "job",
        "machine",
        "region",
        "samples",
        "repeated_samples",
        "estimated_flops",
        "sent_bytes",
        "received_bytes",
        "time_in_the_run_seconds",
        "computing_seconds",
        "estimated_energy_joules",
        "rent",
        "estimated_energy_cost",
        "traffic_cost",
        "left_or_died",
        "cost",
        "currency",
    ]
    for column, name in zip(COLUMNS, head[4:-2], strict=True):
        assert column.title.removesuffix(" (estimated)").lower().replace(" ", "_") in name


PLANS = [
    small_plan(("a", "b")),
    small_plan(("a", "b", "c")),
    small_plan(("d", "d")),
    replicated(),
    replicated(("b", "a"), ("a", "b")),
]
written = st.lists(
    st.builds(
        lambda plan, back, steps, pause, skipped, lost: (PLANS[plan], back, steps, pause, skipped, lost),
        plan=st.integers(0, len(PLANS) - 1),
        back=st.integers(0, 4),
        steps=st.integers(0, 6),
        pause=st.floats(0.0, 50.0),
        skipped=st.frozensets(st.integers(0, 12), max_size=2),
        lost=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def run_of(place: Path, parts: list[tuple[Plan, int, int, float, frozenset[int], bool]]) -> RunFolder:
    attempts: list[WrittenAttempt] = []
    reached = 0
    for plan, back, steps, pause, skipped, lost in parts:
        first = max(reached - back, 0) if attempts else 0
        topology = ALL.select(list(plan.devices)) if lost else ALL
        wait = pause if attempts else 0.0
        attempts.append(WrittenAttempt(plan=plan, topology=topology, first=first, steps=steps, pause=wait, skipped=skipped))
        reached = first + steps
    return write_run(place, small_job(), attempts)


@given(runs=st.lists(written, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_figures_add_up(runs: list[list[tuple[Plan, int, int, float, frozenset[int], bool]]], tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    place = tmp_path_factory.mktemp("runs")
    folders = [run_of(place / f"run-{i}", parts) for i, parts in enumerate(runs)]
    found = [ledger_of(folder, PRICES) for folder in folders]
    for folder, ledger in zip(folders, found, strict=True):
        check_run(folder, ledger)
    machines = {entry.machine: entry for entry in totals(found)}
    for column in COLUMNS:
        whole = sum(getattr(entry, column.name) for ledger in found for entry in ledger.entries)
        assert sum(getattr(entry, column.name) for entry in machines.values()) == pytest.approx(whole)
        assert getattr(sum_of(machines.values()), column.name) == pytest.approx(whole)
    rows = list(csv.DictReader(StringIO(ledger_csv(found, COLUMNS))))
    assert sum(float(row["cost"]) for row in rows) == pytest.approx(sum(entry.cost for entry in machines.values()), abs=1e-6)
    assert sum(float(row["sent_bytes"]) for row in rows) == pytest.approx(sum(ledger.bytes for ledger in found))
    table = total_rows(found)
    assert all(len(row) == len(HEAD) for row in table)
    assert table[-1][2] == f"{sum(ledger.samples for ledger in found):,}"


def check_run(folder: RunFolder, ledger: RunLedger) -> None:
    """The sums of one run, from its records."""
    counted = [record for record in folder.committed() if isinstance(record, StepRecord) and not record.skipped]
    every = [record for record in folder.records() if isinstance(record, StepRecord)]
    assert ledger.samples == sum(record.samples for record in counted)
    assert ledger.samples + ledger.wasted == sum(record.samples for record in every)
    assert ledger.bytes == sum(record.total_bytes for record in every)
    assert sum(entry.sent for entry in ledger.entries) == pytest.approx(ledger.bytes)
    assert sum(entry.received for entry in ledger.entries) == pytest.approx(ledger.bytes)
    by_stage: dict[tuple[int, int], float] = defaultdict(float)
    for share in ledger.stages:
        by_stage[share.attempt, share.stage] += share.samples
    attempts = {attempt for attempt, _ in by_stage}
    for stage in range(2):  # each plan has at least two stages, and each stage computes each sample once
        assert sum(by_stage[attempt, stage] for attempt in attempts) == pytest.approx(ledger.samples)
    for entry in ledger.entries:
        assert 0 <= entry.samples <= ledger.samples * (1 + 1e-9)
        assert 0 <= entry.member_seconds <= ledger.seconds * (1 + 1e-9)


def test_documents_are_plain_values(tmp_path: Path) -> None:
    attempt = WrittenAttempt(plan=replicated(), topology=ALL, first=0, steps=2)
    found = ledger_of(write_run(tmp_path / "run-1", small_job(), [attempt]))
    assert [(share.machine, share.samples) for share in found.stages if share.stage == 0] == [("a", 8.0), ("b", 8.0)]
    assert {entry.machine: entry.busy_seconds for entry in found.entries} == {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
    assert json.dumps(found.causes) == "[]"


def test_helpers_have_rows_and_the_work_of_a_stage_is_counted_once(tmp_path: Path) -> None:
    plan = small_plan(("a", "c"))
    attempts = [
        WrittenAttempt(plan=plan, topology=ALL, first=0, steps=6, helped={(1, "b"): (4, 0.25), (1, "d"): (2, 9.0)}),
        WrittenAttempt(plan=plan, topology=ALL, first=4, steps=6),
    ]
    found = ledger_of(write_run(tmp_path / "run-1", small_job(), attempts), PRICES)
    entries = {entry.machine: entry for entry in found.entries}
    assert list(entries) == ["a", "b", "c", "d"]
    b, d = entries["b"], entries["d"]
    assert (b.samples, d.samples) == (4 * 4, 2 * 4), "two of six steps were repeated"
    assert (b.member_seconds, b.busy_seconds, d.busy_seconds) == (6.0, 1.5, 6.0), "nobody computes longer than the steps took"
    assert (b.region, b.rent) == ("east", pytest.approx(6 / 3600))
    parts = estimate(small_graph(), plan, ALL, small_job()).replicas
    stage = (parts[1].forward_flops + parts[1].backward_flops) / max(plan.micro_batch_sizes) * found.samples
    assert b.flops + entries["c"].flops + d.flops == pytest.approx(stage)
    assert b.flops == pytest.approx(stage * 16 / found.samples)


def test_small_amounts_of_money_have_three_digits_and_no_exponent() -> None:
    found = [money(value, "USD") for value in (0.0, 1234.5, 0.00999, 2.588e-5, -3e-7, 1e-12)]
    assert found == ["0.00 USD", "1,234.50 USD", "0.00999 USD", "0.0000259 USD", "-0.000000300 USD", "1.00e-12 USD"]
