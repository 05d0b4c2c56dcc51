"""Export: one safetensors file, or a folder that the library of the model loads."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from farflung.checkpoint.manifest import Manifest
from farflung.checkpoint.safetensors import Array, encode
from farflung.checkpoint.store import write_file
from farflung.errors import CheckpointError
from farflung.graph.ir import TensorSpec

#: (state, value) -> the value to write.
Change = Callable[[str, Array], Array]

__all__ = ["LIBRARIES", "States", "export_file", "export_folder"]

#: Library -> the key of ``config.json`` that names the model, and the file of the weights.
LIBRARIES = {
    "transformers": ("model_type", "model.safetensors"),
    "timm": ("architecture", "model.safetensors"),
    "diffusers": ("_class_name", "diffusion_pytorch_model.safetensors"),
}


class States(Protocol):
    """States that are read one at a time: a ``CheckpointReader``, or one with another form of its states."""

    @property
    def manifest(self) -> Manifest:
        """The manifest of the checkpoint."""

    @property
    def states(self) -> tuple[str, ...]:
        """The names of parameters and buffers."""

    def spec(self, name: str) -> TensorSpec:
        """Element type and shape of a state."""

    def read(self, names: Iterable[str]) -> dict[str, Array]:
        """States by name."""


def export_file(
    reader: States,
    path: str | Path,
    *,
    names: Mapping[str, str] | None = None,
    aliases: bool = True,
    only: Collection[str] | None = None,
    change: Change | None = None,
) -> tuple[str, ...]:
    """Write all parameters and buffers of a checkpoint (no optimizer) into one safetensors file; returns the names written.

    ``names`` maps states to the names in the file (None: as they are; otherwise every state must be there). ``aliases``: a
    tied parameter is written under all its names, which ``module.load_state_dict`` expects; without, under its first only.
    ``only``: these states and no others. ``change(state, value)`` gives the value to write, of the same shape and type.

    Raises:
        CheckpointError: ``names`` lacks a state or gives two the same name, or the checkpoint or the file fails.
    """
    sources: dict[str, str] = {}
    for state in reader.states:
        if only is not None and state not in only:
            continue
        further = reader.manifest.aliases.get(state, ()) if aliases else ()
        for name in (state, *further):
            target = name if names is None else names.get(name)
            if target is None:
                if name != state:
                    continue
                raise CheckpointError(f"the export's names lack {state!r}: map every state to its name in the file")
            if sources.setdefault(target, state) != state:
                raise CheckpointError(f"the export's names map both {sources[target]!r} and {state!r} to {target!r}")
    specs = {target: reader.spec(state) for target, state in sources.items()}

    def value(target: str) -> Array:
        state = sources[target]
        held = reader.read((state,))[state]
        return held if change is None else change(state, held)

    write_file(Path(path), encode(specs, value, {"format": "pt"}))
    return tuple(specs)


def export_folder(
    reader: States,
    folder: str | Path,
    *,
    config: str | Mapping[str, Any],
    names: Mapping[str, str] | None = None,
    files: Mapping[str, bytes] | None = None,
    change: Change | None = None,
) -> Path:
    """Write ``config.json`` and the weights so that the model's library loads it with equal results; returns the folder.

    ``transformers`` and ``diffusers`` load it with ``from_pretrained(folder)``, ``timm`` with
    ``create_model("local-dir:FOLDER", pretrained=True)``. ``config``: the model's configuration (JSON text or mapping) with the
    key of ``LIBRARIES``. ``names``: states to names of the library's model; where it is given, states without a name are left
    out. Tied parameters are written once, the configuration ties them again. ``files``: further files by name, e.g.
    ``tokenizer.json``. ``change``: as in ``export_file``.

    Raises:
        CheckpointError: ``config`` isn't the configuration of a model of ``LIBRARIES``, or the export fails.
    """
    try:
        table = json.loads(config) if isinstance(config, str) else dict(config)
    except ValueError:
        table = None
    known = reversed(LIBRARIES.values())  # configurations of the later libraries may have the keys of the earlier ones
    weights = next((file for key, file in known if key in table), None) if isinstance(table, dict) else None
    if weights is None:
        keys = " or ".join(key for key, _ in LIBRARIES.values())
        raise CheckpointError(f"config is not the configuration of a model: it must be a JSON object with {keys}")
    place = Path(folder)
    for name, data in (files or {}).items():
        if Path(name).name != name:
            raise CheckpointError(f"the export's file {name!r} must be a plain file name")
        write_file(place / name, (data,))
    export_file(reader, place / weights, names=names, aliases=False, only=names, change=change)
    write_file(place / "config.json", (json.dumps(table, indent=2, sort_keys=True).encode() + b"\n",))
    return place
