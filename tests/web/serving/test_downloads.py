"""Downloads of weights: who asks for many at once gets few, and nothing stays on the disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

pytest.importorskip("nicegui")
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from farflung.errors import CheckpointError
from farflung.web.serving import downloads
from farflung.web.serving.downloads import add_downloads
from farflung.web.serving.rights import SignedIn
from farflung.web.serving.sign_in import Role
from farflung.web.sources.sources import Sources


def served(folder: Path) -> Any:
    """The downloads of one run, for its owner."""
    inner = FastAPI()
    run = SimpleNamespace(name="run-1", folder=SimpleNamespace(root=folder))
    add_downloads(inner, cast(Sources, SimpleNamespace(run=lambda name: run)))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["signed_in"] = SignedIn(role=Role.OWNER, sees_all=True)
        await inner(scope, receive, send)

    return app


def ask(folder: Path, steps: list[str], change: Any = None) -> list[tuple[int, str]]:
    """Status and text of the answers to downloads that begin together; ``change`` happens when the others have been answered."""

    async def run() -> list[tuple[int, str]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served(folder)), base_url="http://x") as http:
            tasks = [asyncio.create_task(http.get(f"/export/run-1/{step}")) for step in steps]
            if change is not None:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                change()
            return [(answer.status_code, answer.text) for answer in await asyncio.gather(*tasks)]

    return asyncio.run(run())


def test_few_downloads_are_under_way_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def write(folder: Path, step: int | None, target: Path) -> int:
        go.wait(30)
        target.write_text(f"weights {step}")
        return step or 0

    monkeypatch.setattr(downloads, "export_checkpoint", write)
    refused = (429, "2 downloads are under way already: try again when one has ended")
    found = ask(tmp_path, ["1", "2", "3", "newest"], go.set)
    assert sorted(found) == [(200, "weights 1"), (200, "weights 2"), refused, refused]
    assert list(tmp_path.iterdir()) == []
    assert ask(tmp_path, ["4"]) == [(200, "weights 4")]


def test_a_download_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, step: int | None, target: Path) -> int:
        target.write_text("half")
        raise CheckpointError("there is no checkpoint of step 7")

    monkeypatch.setattr(downloads, "export_checkpoint", fail)
    assert ask(tmp_path, ["7"] * 2) == [(404, "there is no checkpoint of step 7")] * 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["9" * 5000, "-1", "1e3", "..", "%2e%2e"])
def test_a_step_is_a_number(tmp_path: Path, step: str) -> None:
    (answer,) = ask(tmp_path, [step])
    assert answer[0] == 404
