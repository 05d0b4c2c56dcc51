"""Coming first, and no longer than wanted."""

import os

import pytest

from benchmarks.harness import priority


@pytest.fixture
def nice(monkeypatch):
    """What this process asked for, without its asking."""
    now = [3]
    monkeypatch.setattr(os, "getpriority", lambda which, who: now[0])
    monkeypatch.setattr(os, "setpriority", lambda which, who, value: now.__setitem__(0, value))
    return now


def test_the_session_comes_first_and_then_as_before(tmp_path, nice):
    group = tmp_path / "autogroup"
    group.write_text("/autogroup-638 nice 2\n")
    with priority.favoured(group):
        assert (nice, group.read_text()) == ([-19], "-19")
    assert (nice, group.read_text()) == ([3], "2")


def test_a_session_gets_the_value_of_its_first_program(tmp_path, nice):
    priority.carry_over(tmp_path / "autogroup")
    assert (tmp_path / "autogroup").read_text() == "3"


def test_a_session_without_a_group_has_none_to_give_back(tmp_path, nice):
    group = tmp_path / "autogroup"
    group.write_text("")  # what Linux shows to a session that began outside the groups
    with priority.favoured(group):
        assert nice == [-19]
    assert nice == [3]


def test_without_groups_or_rights_nothing_breaks(tmp_path, monkeypatch):
    def refuse(which, who, value):
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    with priority.favoured(tmp_path / "no" / "autogroup"):
        pass
