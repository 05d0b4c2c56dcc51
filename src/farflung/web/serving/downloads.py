"""Downloads: the weights of a checkpoint as one safetensors file."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, PlainTextResponse

from farflung.errors import FarflungError
from farflung.web.pages.page import View
from farflung.web.sources.checkpoints import export_checkpoint
from farflung.web.sources.sources import Sources

__all__ = ["add_downloads"]


def add_downloads(app: Any, sources: Sources) -> None:
    """Serve ``/export/RUN/STEP`` (a number, or ``newest``) to users who may export the run."""

    async def export(request: Request) -> Response:
        name, step = request.path_params["run"], request.path_params["step"]
        view = View(sources=sources, user=request.state.signed_in, parameters={})
        run = sources.run(name) if view.may_export(name) else None
        if run is None or not (step.isdecimal() or step == "newest"):
            return PlainTextResponse("there is no such checkpoint, or you may not export it", status_code=404)
        return await _export(run.folder.root, run.name, int(step) if step.isdecimal() else None)

    app.add_api_route("/export/{run}/{step}", export, response_model=None, include_in_schema=False)


async def _export(folder: Path, name: str, step: int | None) -> Response:
    """Write the file beside the checkpoints, send it, and remove it."""
    place = tempfile.TemporaryDirectory(prefix="export-", dir=folder)
    target = Path(place.name) / "model.safetensors"
    try:
        found = await asyncio.to_thread(export_checkpoint, folder, step, target)
    except FarflungError as error:
        place.cleanup()
        return PlainTextResponse(str(error), status_code=404)
    shown = quote(f"{name}-step-{found}.safetensors")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{shown}"}
    return FileResponse(target, media_type="application/octet-stream", headers=headers, background=BackgroundTask(place.cleanup))
