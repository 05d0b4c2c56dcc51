"""Trackers by name: farflung's own, and those of other packages."""

from __future__ import annotations

import pytest

from farflung.errors import InputError
from farflung.job.spec import ReportSpec
from farflung.tracking import FILE_TRACKERS, TRACKERS, Tracker, check_installed, check_names, tracker_names


def test_all_members_have_the_protocol() -> None:
    assert set(TRACKERS) >= {"csv", "mlflow", "tensorboard", "trackio", "wandb"}
    for name in ("csv", "mlflow", "tensorboard", "trackio", "wandb"):
        assert isinstance(TRACKERS.get(name)(ReportSpec()), Tracker), "no library is imported before begin"
    assert set(FILE_TRACKERS) <= set(TRACKERS)


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"report\.to: unknown tracker 'neptun': known are csv, mlflow, tensorboard, trackio, wandb"
    ):
        check_names(("csv", "neptun"))
    with pytest.raises(InputError, match=r"--trackers: unknown tracker 'a'"):
        tracker_names("csv, a")
    assert tracker_names(" csv,wandb ,") == ("csv", "wandb")
    assert tracker_names(None) == ()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.tracking.registry.find_spec", lambda name: None)
    with pytest.raises(InputError, match="'wandb' needs the package wandb, missing on the broker's machine: pip install wandb"):
        check_installed("wandb", "on the broker's machine")


def test_a_package_can_bring_a_tracker() -> None:
    TRACKERS.add("mine", lambda: lambda spec: None)  # type: ignore[arg-type,return-value]
    try:
        check_names(("mine",))
        check_installed("mine", "here")
    finally:
        TRACKERS.remove("mine")
