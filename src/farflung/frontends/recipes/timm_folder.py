"""The recipe ``timm``: an image classifier of the library ``timm``, from a local folder or by the name of its architecture.

A folder has ``config.json`` and safetensors, as ``timm.models.save_for_hf`` writes them. Nothing is downloaded. The model is
built without memory, and each worker reads the tensors of its stage only. If the job asks for another number of classes than the
folder has, the classifier begins with initial values, as ``timm.create_model(..., pretrained=True, num_classes=...)`` does it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from farflung.errors import InputError
from farflung.foreign_code import first_line, translated
from farflung.frontends.recipes.adapters import import_library
from farflung.frontends.recipes.base import Recipe
from farflung.frontends.recipes.classifier import classifier_recipe
from farflung.graph.ir import TensorSpec
from farflung.graph.weight_expressions import INITIAL, Expression
from farflung.known_names import did_you_mean

__all__ = ["timm_model"]

_CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
#: ``classifier.Classifier`` calls its model so.
_PREFIX = "network."
#: What the library knows of its own weights, which are others after the training.
_ORIGIN = frozenset(
    (
        *("architecture", "custom_load", "file", "hf_hub_filename", "hf_hub_id", "license"),
        *("origin_url", "source", "state_dict", "tag", "url"),
    )
)
#: The argument of transformers that would resize position embeddings in each forward, also to the size that they have.
_DYNAMIC = "dynamic_img_size"


def timm_model(*, folder: str = "", name: str = "", size: int = 0, **more: Any) -> Recipe:
    """A recipe for images ``float32 (batch, channels, size, size)`` and labels ``int64 (batch,)``; the loss is the cross-entropy.

    Args:
        folder: ``config.json``, and usually ``model.safetensors``.
        name: in place of ``folder``, an architecture of the library, with random weights.
        size: height and width of the images in pixels (0: the model's own).
        more: arguments of ``timm.create_model``, such as ``num_classes``, ``in_chans`` and ``drop_path_rate``.

    Raises:
        InputError: both or none of ``folder`` and ``name`` are given, the library is missing or has no such model, or the folder
            has no configuration or no weights that can be read.
    """
    if type(size) is not int or size < 0:
        raise InputError(f"timm: model.args.size = {size!r}: must be a whole number of pixels (0: the model's own size)")
    library = _library()
    source, own = _folder(folder) if _chosen(folder, name) else (_known(library, name), {})
    arguments = {**own.get("model_args", {}), **more}
    model = _Model(library=library, source=source, arguments=arguments)
    found = model.empty()
    if size and "img_size" not in arguments:
        sized = replace(model, arguments={**arguments, "img_size": size})
        with suppress(InputError):  # a convolutional network has no such argument
            model, found = sized, sized.empty()
    if getattr(found, _DYNAMIC, False):
        model = replace(model, dynamic=False)
    channels, height, _ = _input_size(found, model.arguments, size)
    recipe = classifier_recipe(found.pretrained_cfg["architecture"], model.build, channels=channels, size=height)
    return replace(
        recipe,
        notes={"timm": json.dumps(_config(found, model.arguments, height), sort_keys=True), "prefix": _PREFIX},
        weights=folder if folder and any((Path(folder) / file).is_file() for file in _WEIGHTS) else None,
        sources=functools.partial(_sources, _fresh(found, own)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """How the model is built. ``source``: what ``timm.create_model`` takes. ``dynamic``: position embeddings may be resized."""

    library: Any
    source: str
    arguments: Mapping[str, Any]
    dynamic: bool = True

    def build(self) -> Any:
        """The model with initial weights, which don't count where the folder has weights.

        Raises:
            InputError: the library can't build it.
        """

        def describe(error: Exception) -> Exception:
            given = ", ".join(f"{key} = {value!r}" for key, value in self.arguments.items()) or "no arguments"
            return InputError(f"timm: the model can't be built: {first_line(error)}; called with {given}")

        fixed = {} if self.dynamic else {_DYNAMIC: False}  # all images of a run have one size
        with translated(describe):
            return self.library.create_model(self.source, pretrained=False, **{**self.arguments, **fixed})

    def empty(self) -> Any:
        """The model without memory: for its names and configuration."""
        with torch.device("meta"):
            return self.build()


def _library() -> Any:
    remedy = "pip install 'farflung[timm]'"
    import_library("torchvision", remedy)
    return import_library("timm", remedy)


def _chosen(folder: str, name: str) -> bool:
    """Whether a folder is given (otherwise: a name).

    Raises:
        InputError: both or none are given.
    """
    if bool(folder) == bool(name):
        raise InputError(
            "timm: give model.args.folder (a folder with config.json) or model.args.name (an architecture), not both"
        )
    return bool(folder)


def _known(library: Any, name: str) -> str:
    """``name``, which is an architecture of the library.

    Raises:
        InputError: it is not.
    """
    if ":" in name or "/" in name:
        raise InputError(
            f"timm: model.args.name = {name!r}: nothing is downloaded; download the model, and set model.args.folder"
        )
    if not library.is_model(name):
        hint = did_you_mean(name, library.list_models()).rstrip() or "timm.list_models() lists them"
        raise InputError(f"timm: the library has no architecture {name!r} (model.args.name): {hint}")
    return name


def _folder(folder: str) -> tuple[str, dict[str, Any]]:
    """What ``timm.create_model`` takes for ``folder``, and its configuration.

    Raises:
        InputError: it has no configuration, or weights in no format that is read.
    """
    place = Path(folder).absolute()
    if not (place / _CONFIG).is_file():
        raise InputError(
            f"timm: model.args.folder = {folder!r} has no {_CONFIG}: name the folder of a downloaded model (nothing is fetched)"
        )
    if (place / "pytorch_model.bin").is_file() and not any((place / file).is_file() for file in _WEIGHTS):
        raise InputError(
            f"timm: the weights in model.args.folder = {folder!r} are pickled, and pickled files are never read: save them with "
            "timm.models.save_for_hf(..., safe_serialization=True)"
        )
    with translated(lambda error: InputError(f"timm: {place / _CONFIG} can't be used: {first_line(error)}")):
        own = json.loads((place / _CONFIG).read_text(encoding="utf-8"))
        own = {"num_classes": own.get("pretrained_cfg", own)["num_classes"], "model_args": {}, **own}
    return f"local-dir:{place}", own


def _input_size(model: Any, arguments: Mapping[str, Any], size: int) -> tuple[int, int, int]:
    """Channels, height and width of the images.

    Raises:
        InputError: they are no squares.
    """
    channels, height, width = model.pretrained_cfg["input_size"]
    sides = arguments.get("img_size", (height, width))
    height, width = (sides, sides) if isinstance(sides, int) else tuple(sides)
    height, width = (size, size) if size else (height, width)
    if height != width:
        raise InputError(
            f"timm: the model reads images of {height} x {width} pixels: set model.args.size, images are squares here"
        )
    return int(arguments.get("in_chans", channels)), int(height), int(width)


def _fresh(model: Any, own: Mapping[str, Any]) -> tuple[str, ...]:
    """The states that begin with initial values: those of the classifier, if the folder has another number of classes."""
    if not own or own["num_classes"] == model.num_classes:
        return ()
    named = model.pretrained_cfg.get("classifier") or ()
    heads = tuple(f"{head}." for head in ((named,) if isinstance(named, str) else named))
    return tuple(state for state in model.state_dict() if state.startswith(heads))


def _sources(fresh: Collection[str], names: Collection[str], spec_of: Callable[[str], TensorSpec]) -> dict[str, Expression]:
    """What the states are made of, where that is something else than the tensor of the same name."""
    return {_PREFIX + state: INITIAL for state in fresh}


def _config(model: Any, arguments: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The configuration that ``timm.create_model("local-dir:...")`` reads."""
    known = {key: value for key, value in model.pretrained_cfg.items() if key not in _ORIGIN and value is not None}
    channels = int(arguments.get("in_chans", known["input_size"][0]))
    return {
        "architecture": model.pretrained_cfg["architecture"],
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "model_args": {key: value for key, value in arguments.items() if key != "num_classes"},
        "pretrained_cfg": {**known, "num_classes": model.num_classes, "input_size": [channels, size, size]},
    }
