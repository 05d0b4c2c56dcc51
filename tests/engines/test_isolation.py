"""The owner's choice of isolation: what is opened, what is said, and what is refused."""

from __future__ import annotations

import pytest

from farflung.engines import isolation
from farflung.engines.isolated import PROTECTIONS, IsolatedEngine
from farflung.engines.isolation import describe, missing, open_engine
from farflung.engines.torch.engine import TorchEngine
from farflung.errors import InputError


def test_off_computes_in_this_process() -> None:
    said: list[str] = []
    opened = open_engine("off", said.append)
    assert isinstance(opened.engine, TorchEngine)
    assert (opened.level, said) == ("off", [describe(None)])


def test_auto_takes_what_the_system_has() -> None:
    said: list[str] = []
    opened = open_engine("auto", said.append)
    try:
        assert isinstance(opened.engine, IsolatedEngine)
        assert opened.level == ("partial" if missing(opened.holds or ()) else "full")
        assert said == [describe(opened.holds)]
        assert opened.engine.version().startswith("torch ")
    finally:
        opened.engine.end()


def test_an_unknown_choice_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"^unknown isolation 'strict': known are auto, required, off$"):
        open_engine("strict", lambda line: None)


def test_required_is_refused_where_the_system_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "strange")
    with pytest.raises(
        InputError, match=r"^--isolation required: strange has no sandbox that farflung knows; use --isolation auto"
    ):
        open_engine("required", lambda line: None)


def test_a_choice_without_a_sandbox_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "strange")
    said: list[str] = []
    assert open_engine("auto", said.append).level == "off"
    assert said == [describe(None)]


def test_the_line_names_what_is_missing() -> None:
    assert describe(PROTECTIONS).startswith("isolation: full; ")
    text = "isolation: partial; each job computes in a process of its own, but this system can't take files from it"
    assert describe([name for name in PROTECTIONS if name != "files"]) == text
    assert isolation.ISOLATION == ("auto", "required", "off")
