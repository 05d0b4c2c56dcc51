"""The What-if page reads what a user pastes beside the event loop, one choice after the other."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.api.what_if.sources import preset_job
from farflung.cluster import Topology
from farflung.web.pages import what_if
from farflung.web.pages.what_if_scenario import OWN_TEXT, prices_of


def page_with(**parts: Any) -> Any:
    """The parts of a page that reading needs."""
    form = SimpleNamespace(show=lambda fields: None, show_markup=lambda text: None)
    return SimpleNamespace(
        _values={"job": OWN_TEXT, "topology": OWN_TEXT},
        _settings=form,
        _machines=form,
        _links=form,
        _prices=lambda: prices_of(None),
        _own_text=lambda name: f"the text of a {name}",
        **parts,
    )


@pytest.mark.parametrize(
    ("what", "made"), [("job", preset_job("gpt-small")), ("topology", Topology.preset("home-lab"))], ids=["job", "topology"]
)
def test_pasted_text_is_parsed_on_another_thread(what: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, page = list[threading.Thread](), page_with()

    def parse(text: str) -> Any:
        assert text == f"the text of a {what}"
        threads.append(threading.current_thread())
        return made

    monkeypatch.setattr(what_if, f"{what}_of_text", parse)
    asyncio.run(getattr(what_if.WhatIfPage, f"_read_{what}")(page))
    assert getattr(page, f"_{what}") is made
    assert threads != [threading.main_thread()]


def test_a_choice_that_is_made_while_another_one_is_read_is_read_afterwards() -> None:
    log = list[str]()

    async def read(what: str) -> None:
        log.append(f"{what} begins")
        await asyncio.sleep(0)
        log.append(f"{what} ends")

    async def run() -> None:
        page = page_with(
            _reading=asyncio.Lock(),
            _read_job=lambda: read("job"),
            _read_topology=lambda: read("topology"),
            _ask=lambda: log.append("ask"),
        )
        choices = [what_if.WhatIfPage.read_sources(page, what) for what in ("job", "topology")]
        await asyncio.gather(*choices)

    asyncio.run(run())
    assert log == ["job begins", "job ends", "ask", "topology begins", "topology ends", "ask"]
