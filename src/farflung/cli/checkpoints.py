"""``farflung checkpoint``: list, verify and export what runs have kept (on the broker's machine, or from a copied folder)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from farflung.checkpoint import (
    CheckpointReader,
    CheckpointStore,
    Manifest,
    ObjectCheckpoints,
    export_adapters,
    export_file,
    locate,
)
from farflung.cli.completion import complete_run
from farflung.cli.home import run_folder
from farflung.errors import CheckpointError, FarflungError, InputError
from farflung.units import Bytes, counted

__all__ = ["register"]

checkpoints = typer.Typer(no_args_is_help=True, help="List, verify and export checkpoints.")

RunArgument = Annotated[
    str,
    typer.Argument(
        help="A run's name (on the broker's machine), or the folder of a run or checkpoint.", autocompletion=complete_run
    ),
]
HomeOption = Annotated[Path | None, typer.Option("--home", help="The broker's folder.")]
StepOption = Annotated[int | None, typer.Option(help="Which checkpoint (default: the newest whole one).")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(checkpoints, name="checkpoint")


def _find(run: str, folder: Path | None, step: int | None = None) -> tuple[CheckpointStore, int | None]:
    """The checkpoints of a run's name or a folder, and the step if one is named.

    Raises:
        InputError: there is neither.
    """
    store, named = locate(run_folder(run, folder))
    return store, named if step is None else step


def _size(manifest: Manifest) -> Bytes:
    return Bytes(sum(shard.size for shard in manifest.shards))


@checkpoints.command("list")
def list_checkpoints(
    run: RunArgument,
    folder: HomeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List a run's checkpoints: step, size, tensors, and by how many shards (workers) it was written."""
    store, _ = _find(run, folder)
    found: list[dict[str, Any]] = []
    for step in store.steps():
        try:
            manifest = store.manifest(step)
        except FarflungError as error:
            found.append({"step": step, "problem": str(error)})
            continue
        counts = {"states": len(manifest.states), "optimizer": len(manifest.optimizer), "shards": len(manifest.shards)}
        found.append({"step": step, "bytes": int(_size(manifest)), **counts, "ledger": dict(manifest.ledger)})
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    if not found:
        typer.echo(f"no checkpoint in {store.folder}")
    for row in found:
        if "problem" in row:
            typer.echo(f"step {row['step']:>8}  damaged: {row['problem']}")
            continue
        typer.echo(
            f"step {row['step']:>8}  {Bytes(row['bytes'])!s:>9}  {counted(row['states'], 'state')}, "
            f"{counted(row['optimizer'], 'optimizer tensor')}, {counted(row['shards'], 'shard')}"
        )


@checkpoints.command()
def verify(run: RunArgument, step: StepOption = None, folder: HomeOption = None) -> None:
    """Read every byte of all checkpoints (or of one) and compare it with the hashes; fails if one is damaged."""
    store, chosen = _find(run, folder, step)
    steps = store.steps()
    if chosen is not None:
        store.manifest(chosen)
        steps = (chosen,)
    if not steps:
        raise CheckpointError(f"{store.folder} holds no checkpoint: check the folder")
    failed: list[FarflungError] = []
    for number in steps:
        try:
            manifest = store.verify(number)
        except FarflungError as error:
            if chosen is None and number not in store.steps():
                typer.echo(f"step {number}: removed meanwhile, as the run keeps its newest only")
                continue
            failed.append(error)
            typer.echo(f"step {number}: {error}")
        else:
            typer.echo(f"step {number}: whole, {_size(manifest)} in {counted(len(manifest.shards), 'shard')}")
    if failed:
        raise CheckpointError(f"damaged: {counted(len(failed), 'checkpoint')} of {len(steps)}; use one that is whole")


@checkpoints.command()
def push(
    run: RunArgument,
    url: Annotated[str, typer.Argument(help="Where to, e.g. s3://bucket/folder/run.")],
    step: StepOption = None,
    folder: HomeOption = None,
) -> None:
    """Copy a checkpoint to an object store: shards first, the manifest last; what is there already is not sent again."""
    store, chosen = _find(run, folder, step)
    manifest = store.latest() if chosen is None else store.verify(chosen)
    if manifest is None:
        raise CheckpointError(f"{store.folder} holds no whole checkpoint: there is nothing to copy")
    there = ObjectCheckpoints(url)
    sent = there.push(store, manifest.step)
    typer.echo(f"step {manifest.step}: at {there.url} ({Bytes(sent)} sent)")


@checkpoints.command()
def pull(
    url: Annotated[str, typer.Argument(help="Where from, e.g. s3://bucket/folder/run.")],
    out: Annotated[Path, typer.Argument(help="A folder; checkpoint.resume = its path goes on from there.")],
    step: StepOption = None,
) -> None:
    """Copy a checkpoint (the newest whole one) from an object store; every byte is compared with its hashes."""
    manifest = ObjectCheckpoints(url).pull(CheckpointStore(out / "checkpoints"), step)
    typer.echo(f"step {manifest.step}: whole, {_size(manifest)} in {out}")


@checkpoints.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(help="The safetensors file to write; with --transformers or --adapters a folder.")],
    transformers: Annotated[bool, typer.Option(help="A folder that from_pretrained loads (adapters are merged).")] = False,
    adapters: Annotated[bool, typer.Option(help="The LoRA adapters alone, a folder for peft.")] = False,
    step: StepOption = None,
    folder: HomeOption = None,
    force: Annotated[bool, typer.Option("--force", help="Write over what is there.")] = False,
) -> None:
    """Export weights: one safetensors file with the module's names, or a folder for the transformers library."""
    if transformers and adapters:
        raise InputError("--transformers merges the adapters, --adapters writes them alone: choose one")
    taken = any(out.iterdir()) if out.is_dir() else out.exists()
    if taken and not force:
        raise InputError(f"{out} is there already: name another place, or pass --force to write over it")
    store, chosen = _find(run, folder, step)
    reader = CheckpointReader.from_folder(store.folder, chosen)
    if adapters:
        typer.echo(export_adapters(reader, out))
    elif transformers:
        from farflung.cli.model_export import export_model

        for line in export_model(reader, store.folder.parent, out):
            typer.echo(line)
    else:
        written = export_file(reader, out)
        typer.echo(f"{out}: {counted(len(written), 'tensor')} of step {reader.manifest.step}")
