"""``farflung checkpoint``: list, verify, export and copy checkpoints, on the broker's machine or in a copied folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farflung.checkpoint import (
    CheckpointReader,
    CheckpointStore,
    Manifest,
    ModelFiles,
    ObjectCheckpoints,
    export_adapters,
    export_file,
    export_model,
    locate,
)
from farflung.cli.completion import complete_run
from farflung.cli.home import run_folder
from farflung.cli.options import HomeOption, JsonOption, answer, echo_json, to_write
from farflung.errors import CheckpointError, FarflungError, InputError
from farflung.telemetry.activity import Activity
from farflung.units import Bytes, counted

__all__ = ["register"]

checkpoints = typer.Typer(no_args_is_help=True, help="List, verify, copy and export checkpoints.")

RunArgument = Annotated[
    str,
    typer.Argument(
        help="Name of a run (on the broker's machine), or a folder of a run or checkpoint.", autocompletion=complete_run
    ),
]
StepOption = Annotated[int | None, typer.Option(help="Step of the checkpoint (default: the newest complete one).")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(checkpoints, name="checkpoint")


def _find(run: str, folder: Path | None, step: int | None = None) -> tuple[CheckpointStore, int | None]:
    """Return the checkpoints of a run (name or folder), and the step if there is one.

    Raises:
        InputError: there is neither.
    """
    store, named = locate(run_folder(run, folder))
    return store, named if step is None else step


def _size(manifest: Manifest) -> Bytes:
    return Bytes(sum(shard.size for shard in manifest.shards))


def _tied(count: int) -> str:
    """Return a remark on states that an export writes under several names (empty: there are none)."""
    return f" (and {counted(count, 'further name')} of tied ones)" if count else ""


@checkpoints.command("list")
def list_checkpoints(
    run: RunArgument,
    folder: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of a run: step, size, number of tensors and shards (one shard per worker)."""
    store, _ = _find(run, folder)
    found: list[dict[str, Any]] = []
    for step in store.steps():
        try:
            manifest = store.manifest(step)
        except FarflungError as error:
            found.append({"step": step, "problem": str(error)})
            continue
        further = sum(map(len, manifest.aliases.values()))
        counts = {
            "states": len(manifest.states),
            "optimizer": len(manifest.optimizer),
            "shards": len(manifest.shards),
            "tied": further,
        }
        found.append({"step": step, "bytes": int(_size(manifest)), **counts, "ledger": dict(manifest.ledger)})
    if as_json:
        echo_json(found)
        return
    if not found:
        typer.echo(f"no checkpoint in {store.folder}")
    for row in found:
        if "problem" in row:
            typer.echo(f"step {row['step']:>8}  damaged: {row['problem']}")
            continue
        typer.echo(
            f"step {row['step']:>8}  {Bytes(row['bytes'])!s:>9}  {counted(row['states'], 'state')}{_tied(row['tied'])}, "
            f"{counted(row['optimizer'], 'optimizer tensor')}, {counted(row['shards'], 'shard')}"
        )


@checkpoints.command()
def verify(
    run: RunArgument,
    step: Annotated[int | None, typer.Option(help="Step of the checkpoint (default: all checkpoints).")] = None,
    folder: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify the hashes of all checkpoints, or of the one of --step. Fails if a checkpoint is damaged."""
    store, chosen = _find(run, folder, step)
    steps = store.steps()
    if chosen is not None:
        store.manifest(chosen)
        steps = (chosen,)
    if not steps:
        raise CheckpointError(f"{store.folder} has no checkpoint: check the folder")
    failed: list[FarflungError] = []
    rows: list[dict[str, Any]] = []
    for number in steps:
        try:
            with Activity() as activity:
                activity.phase(f"verifying the checkpoint of step {number}", silent=True)
                manifest = store.verify(number)
        except FarflungError as error:
            if chosen is None and number not in store.steps():
                typer.echo(f"step {number}: the run has removed this checkpoint meanwhile", err=as_json)
                continue
            failed.append(error)
            rows.append({"step": number, "complete": False, "problem": str(error)})
            text = str(error)
        else:
            rows.append({"step": number, "complete": True, "bytes": int(_size(manifest)), "shards": len(manifest.shards)})
            text = f"complete, {_size(manifest)} in {counted(len(manifest.shards), 'shard')}"
        if not as_json:
            typer.echo(f"step {number}: {text}")
    if as_json:
        echo_json(rows)
    if failed:
        raise CheckpointError(f"damaged: {counted(len(failed), 'checkpoint')} of {len(steps)}; use a complete one")


@checkpoints.command()
def push(
    run: RunArgument,
    url: Annotated[str, typer.Argument(help="Destination, e.g. s3://bucket/folder/run.")],
    step: StepOption = None,
    folder: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a checkpoint to an object store. Shards that are there already are not sent again."""
    store, chosen = _find(run, folder, step)
    manifest = store.latest() if chosen is None else store.verify(chosen)
    if manifest is None:
        raise CheckpointError(f"{store.folder} has no complete checkpoint: there is nothing to copy")
    there = ObjectCheckpoints(url)
    with Activity() as activity:
        activity.phase(f"copying the checkpoint of step {manifest.step} to {there.url}", silent=True)
        sent = there.push(store, manifest.step)
    text = f"step {manifest.step}: copied to {there.url} ({Bytes(sent)} sent)"
    answer(text, {"step": manifest.step, "url": there.url, "sent_bytes": int(sent)}, as_json=as_json)


@checkpoints.command()
def pull(
    url: Annotated[str, typer.Argument(help="Source, e.g. s3://bucket/folder/run.")],
    out: Annotated[Path, typer.Argument(help="Folder for the copy; use it in checkpoint.resume.")],
    step: StepOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a checkpoint from an object store, and verify its hashes."""
    with Activity() as activity:
        activity.phase(f"copying a checkpoint from {url}", silent=True)
        manifest = ObjectCheckpoints(url).pull(CheckpointStore(out / "checkpoints"), step)
    text = f"step {manifest.step}: complete, {_size(manifest)} in {out}"
    answer(text, {"step": manifest.step, "folder": str(out), "bytes": int(_size(manifest))}, as_json=as_json)


@checkpoints.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(help="Output file (safetensors); a folder with --pretrained or --adapters.")],
    pretrained: Annotated[
        bool,
        typer.Option(
            "--pretrained",
            "--transformers",
            help="Write a folder that transformers, timm or diffusers loads (adapters are merged).",
        ),
    ] = False,
    adapters: Annotated[bool, typer.Option(help="Write only the LoRA adapters, a folder for peft.")] = False,
    step: StepOption = None,
    folder: HomeOption = None,
    as_json: JsonOption = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Export weights to one safetensors file, or to a folder that the model's library loads."""
    if pretrained and adapters:
        raise InputError("--pretrained merges the adapters, --adapters writes only them: choose one option")
    taken = any(out.iterdir()) if out.is_dir() else out.exists()
    if taken and not force:
        raise InputError(f"{out} exists already: choose another path, or pass --force to overwrite it")
    if not out.is_dir():
        to_write(out)
    store, chosen = _find(run, folder, step)
    reader = CheckpointReader.from_folder(store.folder, chosen)
    with Activity() as activity:
        activity.phase("writing the weights", silent=True)
        lines = _exported(reader, store.folder.parent, out, adapters=adapters, pretrained=pretrained)
    answer("\n".join(lines), {"step": reader.manifest.step, "out": str(out), "lines": lines}, as_json=as_json)


def _exported(reader: CheckpointReader, run_folder: Path, out: Path, *, adapters: bool, pretrained: bool) -> list[str]:
    """Write the export, and return the lines that describe it."""
    if adapters:
        return [str(export_adapters(reader, out))]
    if pretrained:
        return export_model(reader, ModelFiles(run_folder).read(), out)
    written = export_file(reader, out)
    return [f"{out}: {counted(len(written), 'tensor')} of step {reader.manifest.step}"]
