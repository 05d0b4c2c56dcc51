"""Whose run it is: other clients may neither stop nor export it; uploads have limits; names belong to keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.broker.records.checkpoint_room import CheckpointRoom
from farflung.broker.records.run_folders import RunFolders, StorageSettings
from farflung.client.connection import Client
from farflung.errors import InputError, SecurityError
from farflung.security import Caller
from farflung.units import Bytes
from farflung.wire.frames import Frame
from farflung.worker.membership import join
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, captured, text_job
from tests.support.runs.watched_runs import watched

ANN, BEN = (Caller(name=f"client-{name}", role="client", key=name) for name in ("ann", "ben"))
OWNER = Caller(name="client-owner", role="owner", key="owner")


@pytest.fixture
def other(two: Loopback) -> Iterator[Client]:
    client = Client(join(two.ticket("submit"), name="other", role="client"))
    yield client
    client.close()


def test_only_who_submitted_a_run_or_the_owner_may_stop_export_and_watch_it(two: Loopback, other: Client) -> None:
    bundle, _ = two.submit(text_job(steps=1, workers=9))
    for act in (
        lambda: other.stop(bundle.run),
        lambda: other.states(bundle.run, ["head.weight"]),
        lambda: list(watched(other, bundle.run)),
    ):
        with pytest.raises(SecurityError, match=f"run '{bundle.run}' belongs to client-client: only who submitted it"):
            act()
    with pytest.raises(InputError, match=f"run '{bundle.run}' exists already"):
        other.send_weights(bundle.run, [b"x"])
    owner = Client(join(two.ticket("owner"), name="owner", role="client"))
    owner.stop(bundle.run)
    assert [frame.kind for frame in watched(owner, bundle.run)] == ["job", "result"]
    owner.close()
    assert [frame.kind for frame in watched(two.client, bundle.run)] == ["job", "result"]
    listed = next(one for one in other.status()["runs"] if one["run"] == bundle.run)  # type: ignore[attr-defined]
    assert (listed["state"], listed["folder"], listed["loss"], listed["cause"]) == ("stopped", "", None, "")
    listed = next(one for one in two.client.status()["runs"] if one["run"] == bundle.run)  # type: ignore[attr-defined]
    assert listed["folder"]


def test_a_run_is_resumed_by_its_own_submitter_only(two: Loopback, other: Client) -> None:
    first = two.run(text_job(steps=1))
    job = text_job(steps=2, checkpoint={"resume": first.run})
    with pytest.raises(SecurityError, match=r"belongs to client-client: .* may resume from it"):
        other.submit(captured(job, two.home))
    assert two.run(job).result.status == "finished"


def test_a_worker_fetches_the_weights_of_its_own_run_only(two: Loopback) -> None:
    bundle, _ = two.submit(text_job(steps=1, workers=9))
    rpc = two.workers["a"].membership.client
    with pytest.raises(SecurityError, match="'a' does not work on run"):
        list(rpc.stream("states", Frame("states", {"run": bundle.run, "source": "weights", "names": []})))


def test_a_name_of_another_key_is_refused(two: Loopback) -> None:
    two.workers["b"].stop()
    two.threads[1].join(30)
    until(lambda: not two.broker.sessions.serves("b"))
    with pytest.raises(SecurityError, match=r"the name 'b' belongs to another key: .*farflung ticket free b"):
        join(two.ticket("join"), name="b", role="worker")
    join(two.ticket("join"), name="b", role="worker", key=two.key).client.close()


def test_a_submit_ticket_is_no_owners_ticket(two: Loopback) -> None:
    from dataclasses import replace

    with pytest.raises(SecurityError, match="is for 'submit', not for 'owner'"):
        join(replace(two.ticket("submit"), scope="owner"), name="thief", role="client")


def test_a_submission_larger_than_the_limit_stores_nothing(home: Path) -> None:
    limit = StorageSettings(run=Bytes(20_000))
    with Loopback(home, 0, storage=limit) as cluster:
        with pytest.raises(InputError, match="keeps 20 kB of a run at most, and these documents would pass that"):
            cluster.submit(text_job(steps=1))
        assert list((home / "broker" / "runs").iterdir()) == []


# -- folders --------------------------------------------------------------------------------------------------------------


def folders(place: Path, **limits: float) -> RunFolders:
    chosen = StorageSettings(**{key: Bytes(value) for key, value in limits.items()})
    return RunFolders(place / "runs", lambda name: f"ticket of {name}", chosen)


def test_a_claimed_folder_stays_claimed(tmp_path: Path) -> None:
    folders(tmp_path).claim("run-1", ANN)
    again = folders(tmp_path)  # another broker process
    assert again.claim("run-1", ANN) == again.claim("run-1", OWNER) == tmp_path / "runs" / "run-1"
    with pytest.raises(SecurityError, match=r"run 'run-1' belongs to client-ann: .* may send to it"):
        again.claim("run-1", BEN)
    (tmp_path / "runs" / "old").mkdir()
    with pytest.raises(SecurityError, match="run 'old' belongs to nobody who is known"):
        again.check("old", ANN, "stop it")
    again.check("old", OWNER, "stop it")


def test_only_the_owner_resumes_from_elsewhere(tmp_path: Path) -> None:
    place = folders(tmp_path)
    place.claim("run-1", ANN)
    with pytest.raises(SecurityError, match="outside of its runs, from which only the broker's owner may resume"):
        place.source(str(tmp_path), ANN)
    assert place.source(str(tmp_path), OWNER) == tmp_path
    inner = place.root / "run-1" / "checkpoints"
    inner.mkdir()
    assert place.source(str(inner), ANN) == inner
    with pytest.raises(SecurityError, match="may resume from it"):
        place.source(f"{place.root}/../runs/run-1", BEN)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (".", r"'\.' is the folder of all runs: name one of your runs"),
        ("", r"'' is the folder of all runs: name one of your runs"),
        ("a\0b", r"'a\\x00b' is neither a run nor a folder \(embedded null byte\): name one of your runs"),
        ("x" * 5000, r"'x{59} is neither a run nor a folder \(File name too long\): name one of your runs"),
    ],
)
@pytest.mark.parametrize("caller", [ANN, OWNER])
def test_what_is_no_name_to_resume_from_is_refused(tmp_path: Path, text: str, says: str, caller: Caller) -> None:
    place = folders(tmp_path)
    place.claim("run-1", ANN)
    with pytest.raises(InputError, match=says):
        place.source(text, caller)


def test_documents_count_toward_the_limits(tmp_path: Path) -> None:
    place = folders(tmp_path, run=1000, ticket=1500)
    place.claim("run-1", ANN)
    place.check_documents("run-1", 800)
    with pytest.raises(InputError, match="the broker keeps 1 kB of a run at most, and these documents would pass that"):
        place.check_documents("run-1", 1000)
    place.claim("run-2", ANN)
    (tmp_path / "runs" / "run-2" / "bundle.frame").write_bytes(bytes(700))
    with pytest.raises(InputError, match="of all runs of a ticket at most, and these documents would pass that; remove old runs"):
        place.check_documents("run-1", 800)


def test_uploads_have_limits(tmp_path: Path) -> None:
    place = folders(tmp_path, run=1000, ticket=1500)
    for run in ("run-1", "run-2"):
        place.claim(run, ANN)
    small = sum(file.stat().st_size for file in (tmp_path / "runs").rglob("*.json")) // 2
    assert list(place.counted("run-1", [b"x" * (1000 - small)])) == [b"x" * (1000 - small)]
    with pytest.raises(InputError, match=r"run 'run-1': the broker keeps 1 kB of a run at most, .* larger --run-limit"):
        list(place.counted("run-1", [b"x" * 600, b"x" * (401 - small)]))
    (place.path("run-1") / "weights").write_bytes(b"x" * 800)
    with pytest.raises(InputError, match=r"the broker keeps 1\.5 kB of all runs of a ticket at most, .* larger --ticket-limit"):
        list(place.counted("run-2", [b"x" * 700]))
    place.claim("run-3", BEN)
    assert len(list(place.counted("run-3", [b"x" * 700]))) == 1, "another ticket"


def test_a_run_whose_checkpoints_do_not_fit_is_refused_before_it_trains(tmp_path: Path) -> None:
    place = folders(tmp_path, run=10_000, ticket=20_000)
    place.claim("run-1", ANN)
    kept = sum(file.stat().st_size for file in (tmp_path / "runs").rglob("*.json"))
    room = CheckpointRoom(one=3000, surely=2, most=2)
    assert place.check_checkpoints("run-1", 4000 - kept, room) == ""
    with pytest.raises(InputError) as caught:
        place.check_checkpoints("run-1", 4100 - kept, room)
    assert str(caught.value) == (
        "run 'run-1': the broker keeps 10 kB of a run at most, and 2 checkpoints of 3 kB beside the 4.1 kB of the job would pass "
        "that; keep fewer checkpoints (checkpoint.keep), or start the broker with a larger --run-limit, such as '11.1 kB'"
    )
    warning = place.check_checkpoints("run-1", 4000 - kept, CheckpointRoom(one=3000, surely=1, most=3))
    assert warning == (
        "warning: run 'run-1': the broker keeps 10 kB of a run at most, and up to 3 checkpoints of 3 kB at once would pass "
        "that; keep fewer checkpoints (checkpoint.keep), or start the broker with a larger --run-limit, such as '14.3 kB'"
    )
    (place.claim("run-2", ANN) / "weights").write_bytes(bytes(14_000))
    with pytest.raises(InputError, match=r"remove old runs there, or start the broker with a larger --ticket-limit, such as '2"):
        place.check_checkpoints("run-1", 4000 - kept, room)


def test_a_checkpoint_beyond_the_limit_names_its_size_and_a_limit(tmp_path: Path) -> None:
    place = folders(tmp_path, run=1000, ticket=1500)
    kept = sum(file.stat().st_size for file in place.claim("run-1", ANN).iterdir())
    (place.path("run-1") / "job.json").write_bytes(bytes(500 - kept))
    with pytest.raises(InputError) as caught:
        list(place.counted("run-1", [bytes(501)], CheckpointRoom(one=600, surely=1, most=3)))
    assert str(caught.value) == (
        "run 'run-1': the broker keeps 1 kB of a run at most, and a checkpoint of 600 B beside the 500 B there would pass that; "
        "keep fewer checkpoints (checkpoint.keep), or start the broker with a larger --run-limit, such as '2.53 kB'"
    )
