"""Points, what they lead to, and what one submitter's jobs alone can't do."""

from __future__ import annotations

from farflung.protocol.standing import Offense, Standing, StandingRecord


def test_the_jobs_of_one_submitter_alone_lead_to_no_quarantine() -> None:
    standing = Standing()
    for number in range(5):
        standing.offend("a", Offense(f"late {number}", 2, source="eve"))
    assert standing.last("a")
    assert not standing.quarantined("a")
    standing.offend("a", Offense("late again", 1, source="dan"))
    assert standing.quarantined("a")
    assert standing.text("a") == "in quarantine, since late again; farflung kick a --undo resets this"


def test_a_lost_point_is_shown_before_it_has_consequences() -> None:
    standing = Standing()
    standing.offend("a", Offense("late", 1))
    assert not standing.last("a")
    assert standing.text("a") == "lost 1 of 3 points, since late; farflung kick a --undo resets this"


def test_what_no_job_can_cause_leads_to_quarantine_at_once() -> None:
    standing = Standing()
    standing.offend("a", Offense("it lied", 3))
    assert standing.quarantined("a")
    assert standing.reset("a")
    assert standing.text("a") == ""
    assert not standing.reset("a")


def test_a_pardon_takes_back_the_points_of_its_source_only() -> None:
    standing = Standing()
    standing.offend("a", Offense("late", 2, source="eve"))
    standing.offend("a", Offense("accused", 1, source="dan"))
    standing.pardon("a", 1, "dan")
    assert standing.last("a")
    assert not standing.quarantined("a")
    standing.pardon("a", 2, "eve")
    assert standing.changes() == {"a": None}
    standing.pardon("nobody", 1)
    assert standing.changes() == {}


def test_an_offense_that_alone_leads_to_no_quarantine_adds_nothing_beyond_its_bound() -> None:
    record = StandingRecord()
    for source in ("eve", "dan", "kim"):
        record = record.with_offense(Offense("accused", 1, 2, source))
    assert record.total == 2


def test_the_points_of_very_many_submitters_take_bounded_space() -> None:
    record = StandingRecord()
    for number in range(1000):
        record = record.with_offense(Offense("late", 1, source=f"s{number}"))
    assert len(record.points) == 100
    assert len(record.causes) == 3


def test_restored_records_count_and_are_no_changes() -> None:
    standing = Standing()
    standing.restore({"a": StandingRecord(points={"": 3}, causes=("it lied",))})
    assert standing.quarantined("a")
    assert standing.changes() == {}
