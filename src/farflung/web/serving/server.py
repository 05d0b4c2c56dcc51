"""The process that serves the dashboard: NiceGUI on uvicorn, behind the gate."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from nicegui import Event, ui
from nicegui import app as pages_app
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp

from farflung.transports.http_patience import patient_protocol
from farflung.web.pages.catalog import PAGES
from farflung.web.pages.page import Page, View
from farflung.web.serving.downloads import add_downloads
from farflung.web.serving.gate import Gate
from farflung.web.serving.rights import Rights
from farflung.web.sources.sources import Sources
from farflung.web.widgets.layout import frame

__all__ = ["Serving", "serve"]


#: Seconds in which a server whose owner has ended closes its connections.
_GRACE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What is served where. ``certificate``: files of key and certificate (``None``: no TLS).

    ``owned``: the server ends when its standard input does, that is, with the process that started it.
    """

    listening: socket.socket
    sources: Sources
    rights: Rights
    certificate: tuple[Path, Path] | None = None
    owned: bool = False


def serve(serving: Serving) -> None:
    """Serve until a signal arrives, or until the owner ends."""
    os.environ.pop("NICEGUI_STORAGE_PATH", None)
    logging.getLogger("nicegui").setLevel(logging.WARNING)
    outer = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    refreshed: Event[[]] = Event()
    for page in PAGES:
        _add(page, serving, refreshed)
    first = next(page for page in PAGES if page.in_navigation and (serving.sources.has_broker or not page.needs_broker))
    pages_app.add_api_route("/", lambda: RedirectResponse(first.path), include_in_schema=False)
    add_downloads(pages_app, serving.sources)
    follow = serving.sources.follow
    pages_app.on_startup(lambda: asyncio.create_task(follow(serving.rights.refresh, refreshed.emit), name="sources"))
    ui.run_with(
        outer,
        title="farflung",
        language="en-US",
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=10.0,  # a page that was cut off for so long continues where it was; after that it begins anew
        gzip_middleware_factory=_compressed,
    )
    gate = Gate(outer, serving.rights, secure=serving.certificate is not None)
    key, certificate = serving.certificate or (None, None)
    config = uvicorn.Config(
        gate,
        http=patient_protocol(),
        log_level="warning",
        access_log=False,
        server_header=False,
        ssl_keyfile=key,
        ssl_certfile=certificate,
        timeout_graceful_shutdown=1,
        ws_max_size=1 << 20,
    )
    server = uvicorn.Server(config)
    if serving.owned:
        pages_app.on_startup(lambda: _end_with_owner(server))
    server.run(sockets=[serving.listening])


def _compressed(app: ASGIApp) -> GZipMiddleware:
    """Compress lightly: the highest level, the default, costs a third of the first paint."""
    return GZipMiddleware(app, minimum_size=1000, compresslevel=2)


def _end_with_owner(server: uvicorn.Server) -> None:
    """End the server when standard input ends: the process that started it holds the other end.

    A call of the broker on another thread can outlast its process by many seconds. Nothing here needs to be stored, so nobody
    waits for that thread.
    """
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            server.should_exit = True
            loop.call_later(_GRACE, os._exit, 0)

    loop.add_reader(descriptor, readable)


def _add(page: Page, serving: Serving, refreshed: Event[[]]) -> None:
    sources = serving.sources

    def shown(request: Request) -> None:
        view = View(
            sources=sources,
            user=request.state.signed_in,
            parameters={**request.query_params, **request.path_params},
            make_link=lambda role, validity: f"{request.base_url}sign-in#{serving.rights.sign_ins.token(role, validity)}",
            refreshed=refreshed,
        )
        with frame(_links(sources), page.below or page.path):
            page.build(view)

    if not page.needs_broker or sources.has_broker:
        ui.page(page.path, title=f"{page.title} – farflung")(shown)


def _links(sources: Sources) -> Sequence[tuple[str, str]]:
    return [(page.title, page.path) for page in PAGES if page.in_navigation and (sources.has_broker or not page.needs_broker)]
