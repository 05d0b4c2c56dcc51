"""What counts as the log of a service. A pipe or a file of a person does not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from farflung.cli.cluster.service_log import writes_to_a_service_log


def test_the_log_of_a_service_is_known_by_its_journal_its_manager_or_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "log").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        facts = os.fstat(file.fileno())
        assert not writes_to_a_service_log({}, 7)
        assert writes_to_a_service_log({"JOURNAL_STREAM": f"{facts.st_dev}:{facts.st_ino}"}, 7)
        assert not writes_to_a_service_log({"JOURNAL_STREAM": f"{facts.st_dev}:{facts.st_ino + 1}"}, 7), "of a parent"
        assert writes_to_a_service_log({"SYSTEMD_EXEC_PID": "7"}, 7)
        assert not writes_to_a_service_log({"SYSTEMD_EXEC_PID": "6"}, 7), "a program that the service started"
        assert writes_to_a_service_log({}, 1)


def test_a_terminal_is_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    main, terminal = os.openpty()
    with os.fdopen(terminal, "w") as shown:
        monkeypatch.setattr(sys, "stdout", shown)
        assert not writes_to_a_service_log({"SYSTEMD_EXEC_PID": "7"}, 7)
    os.close(main)
