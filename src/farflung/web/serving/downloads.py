"""Downloads: the weights of a checkpoint as one safetensors file."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from starlette.responses import FileResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from farflung.errors import FarflungError
from farflung.web.pages.page import View
from farflung.web.sources.checkpoints import export_checkpoint
from farflung.web.sources.sources import Sources

__all__ = ["add_downloads"]

#: Downloads at a time: until it is sent, each takes as much of the broker's disk as the weights.
_MOST = 2
#: Digits of a step.
_DIGITS = 16


def add_downloads(app: Any, sources: Sources) -> None:
    """Serve ``/export/RUN/STEP`` (a number, or ``newest``) to users who may export the run."""
    under_way: set[_Export] = set()

    async def export(request: Request) -> Response:
        name, step = request.path_params["run"], request.path_params["step"]
        view = View(sources=sources, user=request.state.signed_in, parameters={})
        run = sources.run(name) if view.may_export(name) else None
        if run is None or len(step) > _DIGITS or not (step.isdecimal() or step == "newest"):
            return PlainTextResponse("there is no such checkpoint, or you may not export it", status_code=404)
        if len(under_way) >= _MOST:
            return PlainTextResponse(f"{_MOST} downloads are under way already: try again when one has ended", status_code=429)
        return _Export(run.folder.root, run.name, int(step) if step.isdecimal() else None, under_way)

    app.add_api_route("/export/{run}/{step}", export, response_model=None, include_in_schema=False)


class _Export(Response):
    """The weights of a checkpoint. The file is written when the answer begins, and removed when it ends, whatever ends it."""

    def __init__(self, folder: Path, name: str, step: int | None, under_way: set[_Export]) -> None:
        super().__init__()
        self._folder, self._name, self._step, self._under_way = folder, name, step, under_way
        under_way.add(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the file beside the checkpoints, send it, and remove it."""
        try:
            with tempfile.TemporaryDirectory(prefix="export-", dir=self._folder) as place:
                await (await self._answer(Path(place) / "model.safetensors"))(scope, receive, send)
        finally:
            self._under_way.discard(self)

    async def _answer(self, target: Path) -> Response:
        try:
            found = await asyncio.to_thread(export_checkpoint, self._folder, self._step, target)
        except FarflungError as error:
            return PlainTextResponse(str(error), status_code=404)
        shown = quote(f"{self._name}-step-{found}.safetensors")
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{shown}"}
        return FileResponse(target, media_type="application/octet-stream", headers=headers)
