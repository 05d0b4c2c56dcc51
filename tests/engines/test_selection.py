"""The engine that a worker computes with: the named one, or the installed one with the fastest device."""

from __future__ import annotations

from typing import Any

import pytest

from farflung import extras
from farflung.engines import ComputeDevice
from farflung.engines.isolation import Opened
from farflung.engines.selection import open_selected
from farflung.errors import InputError
from farflung.extras import EngineLibrary, installed_engines, require_engine

CPU = ComputeDevice(name="cpu", cores=8)
GPU = ComputeDevice(name="cuda:0", model="NVIDIA RTX 4090", memory=24_000_000_000)


class Engine:
    """Has ``found`` devices."""

    def __init__(self, *found: ComputeDevice) -> None:
        self._found, self.ended = found, False

    def devices(self) -> tuple[ComputeDevice, ...]:
        return self._found

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two installed engines, of which the second one may reach accelerators."""
    here = EngineLibrary(module="json", title="First")
    there = EngineLibrary(module="csv", title="Second", plugins="csv")
    monkeypatch.setattr("farflung.engines.selection.ENGINE_LIBRARIES", {"first": here, "second": there})
    monkeypatch.setattr(extras, "ENGINE_LIBRARIES", {"first": here, "second": there})


def chosen(asked: str, device: str, first: Engine, second: Engine) -> tuple[str, list[str]]:
    table: dict[str, Any] = {"first": first, "second": second}
    opened: list[str] = []

    def opening(name: str) -> Opened:
        opened.append(name)
        return Opened(table[name], None)

    found = open_selected(asked, device, opening).engine
    assert [name for name in opened if not table[name].ended] == [name for name in table if table[name] is found]
    return next(name for name in table if table[name] is found), opened


@pytest.mark.usefixtures("two")
def test_auto_takes_the_first_engine_unless_another_one_has_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen("auto", "auto", Engine(GPU, CPU), Engine(GPU, CPU)) == ("first", ["first"])
    assert chosen("auto", "auto", Engine(CPU), Engine(GPU, CPU)) == ("second", ["first", "second"])
    assert chosen("auto", "auto", Engine(CPU), Engine(CPU)) == ("first", ["first", "second"])
    assert chosen("auto", "cpu", Engine(CPU), Engine(GPU, CPU)) == ("first", ["first"])
    assert chosen("auto", "cuda", Engine(CPU), Engine(GPU, CPU)) == ("second", ["first", "second"])
    monkeypatch.setitem(extras.ENGINE_LIBRARIES, "second", EngineLibrary(module="csv", title="Second"))
    monkeypatch.setattr("farflung.engines.selection.ENGINE_LIBRARIES", extras.ENGINE_LIBRARIES)
    assert chosen("auto", "auto", Engine(CPU), Engine(GPU, CPU)) == ("first", ["first"])


@pytest.mark.usefixtures("two")
def test_no_engine_has_the_device() -> None:
    first, second = Engine(CPU), Engine(CPU)
    with pytest.raises(InputError, match=r"^device 'cuda' is not available here: there is cpu, 8 cores; use one of these"):
        chosen("auto", "cuda", first, second)
    assert first.ended
    assert second.ended


def test_an_unknown_engine_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match=r"^unknown engine 'torhc': did you mean 'torch'\? known are .*torch"):
        open_selected("torhc", "auto", pytest.fail)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "ENGINE_LIBRARIES", {"torch": EngineLibrary(module="nowhere_found", title="PyTorch")})
    text = r"^--engine torch needs PyTorch, which is not installed here: pip install 'farflung\[torch\]', or use another engine$"
    with pytest.raises(InputError, match=text):
        require_engine("torch")
    with pytest.raises(
        InputError, match=r"^a worker needs PyTorch, which is not installed here: pip install 'farflung\[torch\]'$"
    ):
        require_engine("auto")
    require_engine("reference")


def test_the_installed_engines() -> None:
    assert installed_engines()[0] == "torch"
