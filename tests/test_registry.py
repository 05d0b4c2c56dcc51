"""Members by name, plug-ins included."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.registry import Registry

NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=10)


def colours() -> Registry[str]:
    registry: Registry[str] = Registry("colour", "test_colours")
    for name in ("red", "green", "blue"):
        registry.add(name, lambda name=name: name.upper())  # type: ignore[misc]
    return registry


@dataclass(frozen=True)
class Point:
    """Stands for an installed package's entry point."""

    name: str
    value: Any

    def load(self) -> Any:
        return self.value


def test_a_member_is_loaded_when_it_is_asked_for_and_not_before() -> None:
    loads: list[str] = []
    registry: Registry[str] = Registry("colour", "test_colours")
    registry.add("red", lambda: loads.append("red") or "RED")  # type: ignore[func-returns-value]
    assert "red" in registry
    assert list(registry) == ["red"]
    assert loads == []
    assert registry.get("red") == "RED"
    assert loads == ["red"]


def test_an_unknown_name_lists_the_known_ones_and_guesses() -> None:
    with pytest.raises(InputError) as caught:
        colours().get("gren")
    assert str(caught.value) == "unknown colour 'gren': did you mean 'green'? known are blue, green, red"


def test_an_unknown_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(InputError) as caught:
        colours().get("xyz")
    assert str(caught.value) == "unknown colour 'xyz': known are blue, green, red"


def test_an_empty_registry_says_so() -> None:
    with pytest.raises(InputError, match="unknown colour 'red': none is installed"):
        Registry[str]("colour", "test_colours").get("red")


def test_a_name_is_registered_once() -> None:
    registry = colours()
    with pytest.raises(ValueError, match="colour 'red' is registered twice"):
        registry.add("red", lambda: "other")
    assert registry.get("red") == "RED"


def test_installed_packages_add_members_but_do_not_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[str] = []

    def entry_points(*, group: str) -> list[Point]:
        groups.append(group)
        return [Point("violet", "VIOLET"), Point("red", "stolen")]

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    registry = colours()
    assert registry.get("violet") == "VIOLET"
    assert registry.get("red") == "RED"
    assert list(registry) == ["blue", "green", "red", "violet"]
    assert groups == ["farflung.test_colours"], "the group is read once"


@settings(deadline=None, max_examples=50)
@given(known=st.sets(NAMES, max_size=8), asked=NAMES)
def test_get_gives_the_member_or_names_all_known(known: set[str], asked: str) -> None:
    registry: Registry[str] = Registry("thing", "test_things")
    for name in known:
        registry.add(name, lambda name=name: f"<{name}>")  # type: ignore[misc]
    assert (asked in registry) is (asked in known)
    assert list(registry) == sorted(known)
    if asked in known:
        assert registry.get(asked) == f"<{asked}>"
        return
    with pytest.raises(InputError) as caught:
        registry.get(asked)
    assert all(name in str(caught.value) for name in known)
