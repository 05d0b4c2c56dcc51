"""The space that checkpoints take is known before a run trains, and a job that needs more than the broker has is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.broker.records.checkpoint_room import checkpoint_room, roomy
from farflung.broker.records.run_folders import StorageSettings
from farflung.errors import InputError
from farflung.units import Bytes
from tests.support.runs.loopback import Loopback, captured, text_job


@pytest.mark.parametrize(
    ("checkpoint", "surely", "most"),
    [
        ({}, 1, 3),
        ({"recover_every": 0.0}, 1, 1),
        ({"recover_every": 0.0, "at_end": False}, 0, 0),
        ({"at_end": False}, 0, 3),
        ({"recover_every": 0.0, "every": 4, "keep": 5}, 3, 3),
        ({"recover_every": 0.0, "every": 5, "at_end": False}, 2, 2),
        ({"recover_every": 0.0, "every": 1, "keep": 4}, 5, 5),
    ],
)
def test_how_many_checkpoints_are_stored_at_once(home: Path, checkpoint: dict[str, object], surely: int, most: int) -> None:
    found = checkpoint_room(captured(text_job(steps=10, checkpoint=checkpoint), home))
    assert (found.surely, found.most) == (surely, most)


@pytest.mark.parametrize("optimizer", [{"name": "sgd", "lr": 0.1}, {"name": "adamw", "lr": 0.01}])
def test_the_size_is_that_of_the_files(home: Path, optimizer: dict[str, object]) -> None:
    job = text_job(steps=1, optimizer=optimizer)
    with Loopback(home, 1) as cluster:
        run = cluster.run(job)
    written = sum(array.nbytes for array in run.tensors().values())
    expected = checkpoint_room(captured(job, home)).one
    assert expected <= written <= 1.01 * expected, "a number of steps for each parameter is not counted"


def test_a_job_that_cannot_fit_is_refused_and_one_that_may_not_is_warned(home: Path) -> None:
    job = text_job(steps=1, workers=1, optimizer={"name": "adamw", "lr": 0.01})
    one = checkpoint_room(captured(job, home)).one
    with Loopback(home, 0, storage=StorageSettings(run=Bytes(one))) as cluster:
        with pytest.raises(InputError, match=r"and 1 checkpoint of .* such as '"):
            cluster.submit(job)
        assert list((home / "broker" / "runs").iterdir()) == [], "what was sent is deleted"
        assert cluster.client.status()["runs"] == []
    with Loopback(home, 1, folder="second", storage=StorageSettings(run=Bytes(3 * one))) as cluster:
        notes = [str(frame.header["text"]) for frame in cluster.run(job).frames if frame.kind == "note"]
    assert any(note.startswith("warning: run 'run-") and "up to 3 checkpoints of" in note for note in notes), notes


def test_a_limit_has_room_for_logs() -> None:
    assert roomy(1e9) == "1.1 GB"
