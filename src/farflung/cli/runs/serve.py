"""``farflung serve``: a language model behind the OpenAI API, split over the joined workers."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.broker_connection import join_broker
from farflung.cli.completion import complete_run
from farflung.cli.home import run_folder
from farflung.cli.options import HomeOption, TicketOption
from farflung.cli.planning.inputs import read_topology
from farflung.client.connection import Client
from farflung.errors import InputError
from farflung.extras import require_serve, require_torch
from farflung.telemetry.activity import Activity

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(serve)


def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="A run's name (on the broker's machine), the folder of a run or checkpoint, or a folder of transformers.",
            autocompletion=complete_run,
        ),
    ],
    ticket: TicketOption = None,
    listen: Annotated[str, typer.Option(help="Where clients connect, as HOST:PORT (port 0: any free port).")] = "127.0.0.1:8000",
    name: Annotated[str | None, typer.Option(help="What clients call the model (default: the name of run or folder).")] = None,
    api_key: Annotated[
        str, typer.Option(envvar="FARFLUNG_API_KEY", help="The key that clients send (needed if other machines can connect).")
    ] = "",
    slots: Annotated[int, typer.Option(help="Requests that are computed at the same time; the others wait.")] = 8,
    context: Annotated[int, typer.Option(help="Tokens of a request with its answer (0: as the model allows, at most 2048).")] = 0,
    chunk: Annotated[int, typer.Option(help="Tokens that a stage computes at once: long prompts are cut into chunks.")] = 64,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Wait for this number of workers (default: use those that idle).")
    ] = None,
    planner: Annotated[
        str, typer.Option(help="The planner that divides the model; equal_compute uses all workers.")
    ] = "op_fence",
    threads: Annotated[int, typer.Option(min=1, help="Threads inside an operator, on every worker.")] = 1,
    dtype: Annotated[str, typer.Option(help="Element type of a folder's weights: float32 or bfloat16.")] = "float32",
    data: Annotated[
        Path | None, typer.Option(help="Where the job's data paths start, for a run's tokenizer (default: here).")
    ] = None,
    topology: Annotated[str | None, typer.Option(help="Links between the workers: a TOML file or a preset.")] = None,
    emulate: Annotated[bool, typer.Option(help="Slow the links down to those of the topology.")] = False,
    home: HomeOption = None,
) -> None:
    """Serve a language model with the OpenAI API. Its layers are divided over the joined workers. Ctrl-C ends the server."""
    require_serve()
    require_torch("serving a model")
    if emulate and topology is None:
        raise InputError("--emulate needs the links of a topology: add --topology FILE")
    from farflung.serving.model import ServingOptions, open_model
    from farflung.serving.server import listen as listen_at
    from farflung.serving.server import serve_model

    options = ServingOptions(
        slots=slots,
        context=context,
        chunk=chunk,
        planner=planner,
        workers=workers,
        threads=threads,
        dtype=dtype,
        topology=None if topology is None else read_topology(topology),
        emulate=emulate,
    )
    # the server's HTTP library ends by the signal that it got: this handler lets everything be closed first
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    folder = Path(model)
    source = folder if (folder / "config.json").is_file() else run_folder(model, home)
    with listen_at(listen, api_key) as listening, Activity() as activity:
        client = Client(join_broker(ticket, home, serves=True, activity=activity))
        try:
            activity.phase("loading the model", silent=True)
            called = name or folder.resolve().name
            with open_model(source, called, options, data=data or Path.cwd(), say=activity.phase) as opened:
                activity.phase("waiting for the workers", silent=True)
                serve_model(client, opened, listening, api_key, activity.say)
        finally:
            client.close()
