"""Child processes: output in logs, clear words when one fails, none left over."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from farflung.cli.trial import child_commands as module
from farflung.cli.trial.child_commands import Children
from farflung.errors import TrainingError


@pytest.fixture
def brood(tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path / "logs", {"FARFLUNG_HOME": str(tmp_path / "home")}) as made:
        yield made


def test_a_line_is_awaited_and_the_children_end_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_SECONDS", 60.0)
    with Children(tmp_path / "logs", {"FARFLUNG_HOME": str(tmp_path / "home")}) as made:
        made.start("broker", ["broker", "--listen", "127.0.0.1:0"])
        made.check()
        assert made.await_line("broker", r"farflung join (\S+)\n", 60)[1]
        assert (tmp_path / "home" / "broker" / "submit-ticket").is_file()
        process = psutil.Process(made.pids["broker"])
        assert process.is_running()
    assert not process.is_running()
    assert "broker: closing" in (tmp_path / "logs" / "broker.log").read_text(), "it was asked, not killed"


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.0)
    with Children(tmp_path / "logs", {"FARFLUNG_HOME": str(tmp_path / "home")}) as made:
        made.start("broker", ["broker", "--listen", "127.0.0.1:0"])
        made.await_line("broker", "farflung join", 60)
        process = psutil.Process(made.pids["broker"])
        process.suspend()  # a stopped process hears no request
    assert not process.is_running()


def test_a_signal_in_the_middle_of_a_start_leaves_no_child_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(module.subprocess, "Popen", Interrupted)
    try:
        with Children(tmp_path / "logs", {}) as made:
            with pytest.raises(KeyboardInterrupt):
                made.start("version", ["version"])
            process = psutil.Process(made.pids["version"])
        assert not process.is_running()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_child_that_ends_is_named_with_its_last_words(brood: Children) -> None:
    brood.start("east-0", ["join", "no-ticket"])
    with pytest.raises(TrainingError) as failed:
        brood.await_line("east-0", "joined", 60)
    text = str(failed.value)
    assert re.search(r"east-0 ended by itself \(exit code 8\)", text)
    assert str(brood.log("east-0")) in text
    assert re.search(r"\n  \| farflung: .*ticket", text)


def test_a_line_that_does_not_come_in_time(brood: Children) -> None:
    brood.start("broker", ["broker", "--listen", "127.0.0.1:0"])
    with pytest.raises(TrainingError, match=r"broker was not ready within 0 s"):
        brood.await_line("broker", "never said", 0)


def test_a_child_that_was_killed_on_purpose_is_not_missed(brood: Children) -> None:
    brood.start("broker", ["broker", "--listen", "127.0.0.1:0"])
    brood.start("version", ["version"])
    process = psutil.Process(brood.pids["broker"])
    brood.kill("broker")
    assert not process.is_running()
    assert list(brood.pids) == ["version"]
    with pytest.raises(TrainingError, match=r"version ended by itself \(exit code 0\)"):
        brood.await_line("version", "never said", 60)
