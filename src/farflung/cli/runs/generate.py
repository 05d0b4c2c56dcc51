"""``farflung generate``: continue a text with the model of a run, during or after training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.completion import complete_run
from farflung.cli.home import run_folder
from farflung.cli.options import HomeOption, JsonOption, echo_json
from farflung.errors import InputError
from farflung.foreign_text import printable
from farflung.telemetry.activity import Activity

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(generate)


def generate(
    run: Annotated[
        str,
        typer.Argument(
            help="A run's name (on the broker's machine), or the folder of a run or checkpoint.", autocompletion=complete_run
        ),
    ],
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    max_tokens: Annotated[int, typer.Option(help="Tokens to write at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="Below 1: likelier tokens; 0: always the likeliest (greedy).")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the likeliest tokens only (0: from all).")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that have this share of the probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    step: Annotated[int | None, typer.Option(help="Which checkpoint (default: the newest).")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the job's data paths start, for its tokenizer (default: here).")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a text with the model of a run, from its newest checkpoint; the run may still train."""
    from farflung.api.generation import Sampling, open_writer

    if max_tokens < 1:
        raise InputError(f"--max-tokens must be 1 or more, got {max_tokens}")
    if not prompt:
        raise InputError("the prompt is empty: give --prompt at least one character")
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    with Activity() as activity:
        activity.phase("loading the model", silent=True)
        writer = open_writer(run_folder(run, home), data or Path.cwd(), step)
    if as_json:
        text = "".join(writer.write(prompt, max_tokens, sampling))
        echo_json({"run": run, "step": writer.step, "prompt": prompt, "text": text})
        return
    typer.echo(f"{run}: the checkpoint after step {writer.step}", err=True)
    typer.echo(printable(prompt), nl=False)
    for piece in writer.write(prompt, max_tokens, sampling):
        typer.echo(printable(piece), nl=False)
    typer.echo()
