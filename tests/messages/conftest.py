"""Golden frames: the headers of every kind of frame, as senders of protocol version 9 write them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from farflung.messages.schema import Channel
from farflung.wire.frames import Frame
from tests.support.runs.cluster_fixtures import *  # noqa: F403 - fixtures apply to the folder whose conftest has them


@dataclass(frozen=True)
class Golden:
    """A frame and the channel on which it travels."""

    channel: Channel
    frame: Frame

    def __str__(self) -> str:
        return f"{self.channel.value}-{self.frame.kind}"


@cache
def _golden_frames() -> list[Golden]:
    """Return all golden frames; their sections hold one byte each."""
    entries = json.loads((Path(__file__).parent / "golden_frames.json").read_text(encoding="utf-8"))
    return [
        Golden(Channel(entry["channel"]), Frame(entry["kind"], _plain(entry["header"]), (b"\0",) * entry["sections"]))
        for entry in entries
    ]


def _plain(value: Any) -> Any:
    """A JSON value with bytes in place of ``{"hex": ...}``."""
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if value.keys() == {"hex"} else {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def every_golden() -> list[Golden]:
    """All golden frames."""
    return _golden_frames()


def pytest_generate_tests(metafunc: Any) -> None:
    """Give ``golden`` to each test that asks for it."""
    if "golden" in metafunc.fixturenames:
        found = _golden_frames()
        metafunc.parametrize("golden", found, ids=[f"{number}-{one}" for number, one in enumerate(found)])
