"""The audit log only grows at its end, and takes bounded space."""

from __future__ import annotations

import json
from pathlib import Path

from farflung.security.audit_log import AuditLog


def events(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def test_lines_are_appended_and_foreign_text_stays_in_its_line(tmp_path: Path) -> None:
    for number in range(2):  # a broker that is started again goes on with the same file
        AuditLog(tmp_path, lambda: 0.0).write(f"e{number}", name='a\n{"event": "forged"}\x1b[2J')
    lines = (tmp_path / "audit.jsonl").read_text()
    assert events(tmp_path / "audit.jsonl") == ["e0", "e1"]
    assert lines.isascii()
    assert "\x1b" not in lines


def test_full_files_are_renamed_and_the_oldest_is_removed(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, lambda: 0.0, full=1)
    for number in range(7):
        log.write(f"e{number}")
    found = {path.name: events(path) for path in tmp_path.iterdir()}
    assert found == {"audit.jsonl": ["e6"]} | {f"audit.{age}.jsonl": [f"e{6 - age}"] for age in (1, 2, 3, 4)}
