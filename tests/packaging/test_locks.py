"""The lock files pin what pyproject.toml asks for, in the versions of constraints.txt, with hashes. ``make lock`` writes them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^ ;\\]+)", re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    return {normal(name): version for name, version in _PIN.findall(text)}


def wanted(name: str) -> set[str]:
    """The names of what the lock file's extras ask for, by the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    (extras,) = re.findall(rf"^LOCKED_{name} := (.*)$", makefile, re.MULTILINE)
    lines = [*PROJECT["dependencies"], *(line for extra in extras.split() for line in PROJECT["optional-dependencies"][extra])]
    return {normal(re.split(r"[\[<>=!; ]", line)[0]) for line in lines} - {"farflung"}


@pytest.mark.parametrize("name", ["broker", "worker"])
def test_a_lock_file_has_every_dependency_in_the_tested_version_with_hashes(name: str) -> None:
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    locked, tested = pins(text), pins((ROOT / "constraints.txt").read_text())
    assert wanted(name) - locked.keys() == set(), "run make lock"
    assert {one: (locked[one], tested[one]) for one in locked.keys() & tested.keys() if locked[one] != tested[one]} == {}
    parts = re.split(r"\n(?=[A-Za-z0-9])", text)
    assert [part.split("\n")[0] for part in parts if "==" in part and "--hash=sha256:" not in part] == []


def test_a_broker_is_locked_without_pytorch() -> None:
    assert "torch" not in pins((ROOT / "locks" / "broker.txt").read_text())
    assert "torch" in pins((ROOT / "locks" / "worker.txt").read_text())
