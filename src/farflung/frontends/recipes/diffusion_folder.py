"""The recipe ``diffusers``: a denoiser of the library ``diffusers`` (UNet, DiT or another transformer) from a local folder.

The loss is the squared error of the prediction for a noisy sample at a random time. Noise and time are drawn inside the graph, so
the data are plain images or latents. Nothing is downloaded, and no code of the folder runs.

Source: Ho et al. 2020, "Denoising Diffusion Probabilistic Models", equation 14; for ``v_prediction`` Salimans and Ho 2022,
"Progressive Distillation for Fast Sampling of Diffusion Models", appendix D. What differs: outputs beyond the channels of a
sample, which some models have for a variance, are not trained.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.errors import InputError
from farflung.foreign_code import first_line, translated
from farflung.frontends.recipes.adapters import import_library
from farflung.frontends.recipes.base import Form, Recipe
from farflung.known_names import did_you_mean, known_names

__all__ = ["Denoiser", "diffusion_model"]

_CONFIG, _CLASS, _WEIGHTS = "config.json", "_class_name", "diffusion_pytorch_model.safetensors"
#: Where a folder of a pipeline has its denoiser.
_PARTS = ("unet", "transformer")
#: ``Denoiser`` calls its model so.
_PREFIX = "network."
_PREDICTIONS = ("epsilon", "v_prediction", "sample")
#: Conditions of a model, by the names of its forward's arguments.
_CLASSES, _TEXT = "class_labels", "encoder_hidden_states"
#: Keys of configurations with the dimensions of ``encoder_hidden_states``.
_TEXT_DIMS = ("cross_attention_dim", "caption_channels", "joint_attention_dim", "text_embed_dim")


class Denoiser(nn.Module):
    """``forward(images, ...)``: ``float32 (batch, channels, height, width)`` and conditions by name -> mean squared error.

    ``kept``: how much of a sample's power is left at each time, ``float32 (times,)``. ``prediction``: what the network predicts:
    the noise (``epsilon``), the ``sample``, or ``v_prediction``.
    """

    def __init__(self, network: nn.Module, kept: list[float], prediction: str) -> None:
        super().__init__()
        self.network = network
        self.prediction = prediction
        self.kept: Tensor
        self.register_buffer("kept", torch.tensor(kept, dtype=torch.float32), persistent=False)

    def forward(self, images: Tensor, **conditions: Tensor) -> Tensor:
        noise = torch.randn_like(images)
        times = torch.randint(0, self.kept.shape[0], (images.shape[0],), device=images.device)
        kept = self.kept[times].view(-1, *(1 for _ in images.shape[1:]))
        signal, rest = kept.sqrt(), (1.0 - kept).sqrt()
        found = self.network(signal * images + rest * noise, timestep=times, return_dict=False, **conditions)[0]
        targets = {"epsilon": noise, "v_prediction": signal * noise - rest * images, "sample": images}
        return functional.mse_loss(found[:, : images.shape[1]], targets[self.prediction])


def diffusion_model(
    *, folder: str, size: int = 0, tokens: int = 77, inputs: str = "", prediction: str = "", **more: Any
) -> Recipe:
    """A recipe for the denoiser in ``folder``.

    Args:
        folder: a model with ``config.json``, or a pipeline with a folder ``unet`` or ``transformer``. The noise is that of
            ``scheduler_config.json`` beside the model or in the folder ``scheduler`` (else: that of ``DDPMScheduler()``).
        size: height and width of the samples (0: the model's ``sample_size``).
        tokens: of the input ``encoder_hidden_states``.
        inputs: conditions that the data give, by the names of the model's forward, with commas (default: those that it needs).
        prediction: ``epsilon``, ``v_prediction`` or ``sample`` (default: that of the noise's configuration).
        more: any key of ``config.json``.

    Raises:
        InputError: the folder has no model of the library, or an argument is unknown.
    """
    if type(size) is not int or size < 0:
        raise InputError(f"diffusers: model.args.size = {size!r}: must be a whole number of pixels (0: the model's own size)")
    library = import_library("diffusers", "pip install 'farflung[diffusers]'")
    place = _model_folder(Path(folder))
    model = _Model(library=library, config=_config(place, more))
    empty = model.empty()
    noise = _noise(library, place, prediction)
    named = tuple(name.strip() for name in inputs.split(",")) if inputs else _conditions(empty)
    shapes = _shapes(empty, named, size, tokens)

    def make() -> nn.Module:
        return Denoiser(model.build(), *noise)

    def examples(batch: int) -> dict[str, Tensor]:
        return {name: torch.zeros(batch, *shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}

    form = Form(factory=make, example_inputs=examples)
    return Recipe(
        name=type(empty).__name__,
        train=form,
        evaluate=form,
        inputs=tuple(shapes),
        labels=(),
        notes={"diffusers": json.dumps(model.config, sort_keys=True, default=str), "prefix": _PREFIX},
        weights=str(place / _WEIGHTS) if (place / _WEIGHTS).is_file() else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """How the model is built."""

    library: Any
    config: dict[str, Any]

    def build(self) -> Any:
        """The model with initial weights, which don't count where the folder has weights.

        Raises:
            InputError: the library has no such model, or can't build it.
        """
        name = self.config[_CLASS]
        kind: Any = getattr(self.library, name, None) if isinstance(name, str) else None
        if not (isinstance(kind, type) and issubclass(kind, self.library.ModelMixin)):
            raise InputError(f"diffusers: the library has no model class {name!r:.80}, which {_CONFIG} names: update diffusers")

        def describe(error: Exception) -> Exception:
            return InputError(f"diffusers: the model {name} can't be built: {first_line(error)}; check {_CONFIG}")

        with translated(describe):
            made: Any = kind
            return made.from_config(self.config).train()

    def empty(self) -> Any:
        """The model without memory: for its configuration and its forward."""
        with torch.device("meta"):
            return self.build()


def _model_folder(folder: Path) -> Path:
    """The folder of the denoiser, which is ``folder`` or one of its parts.

    Raises:
        InputError: there is none, or its weights are in no format that is read.
    """
    place = next((one for one in (folder, *(folder / part for part in _PARTS)) if (one / _CONFIG).is_file()), None)
    if place is None:
        raise InputError(
            f"diffusers: model.args.folder = {str(folder)!r} has no {_CONFIG}, nor a folder {' or '.join(_PARTS)} with one: name "
            "the folder of a downloaded model (nothing is downloaded)"
        )
    others = [path.name for path in sorted(place.iterdir()) if path.name.startswith("diffusion_pytorch_model")]
    if others and _WEIGHTS not in others:
        raise InputError(
            f"diffusers: the weights in {place} are {others[0]!r:.80}, and only {_WEIGHTS} is read: save the model again with "
            'save_pretrained(..., safe_serialization=True, max_shard_size="1000GB")'
        )
    return place


def _config(place: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the model with ``changes``.

    Raises:
        InputError: the file can't be read, names no class, or lacks a key of ``changes``.
    """
    with translated(lambda error: InputError(f"diffusers: {place / _CONFIG} can't be used: {first_line(error)}")):
        found = dict(json.loads((place / _CONFIG).read_text(encoding="utf-8")))
    if _CLASS not in found:
        raise InputError(f"diffusers: {place / _CONFIG} names no {_CLASS}: name the folder of a model of diffusers")
    for key in changes:
        if key not in found:
            known = ("folder", "size", "tokens", "inputs", "prediction")
            raise InputError(
                f"diffusers: unknown argument model.args.{key}: {did_you_mean(key, (*known, *found))}known are "
                f"{', '.join(known)}, and the keys of {place / _CONFIG}"
            )
    return found | changes


def _noise(library: Any, place: Path, prediction: str) -> tuple[list[float], str]:
    """How much of a sample's power is left at each time, and what the model predicts.

    Raises:
        InputError: the configuration of the noise can't be used, or what is predicted is unknown.
    """
    files = (place / "scheduler_config.json", place.parent / "scheduler" / "scheduler_config.json")
    file = next((one for one in files if one.is_file()), None)
    with translated(lambda error: InputError(f"diffusers: {file} can't be used: {first_line(error)}")):
        config = {} if file is None else json.loads(file.read_text(encoding="utf-8"))
        scheduler = library.DDPMScheduler.from_config(config)
        found = [float(one) for one in scheduler.alphas_cumprod]
    wanted = prediction or str(config.get("prediction_type", "epsilon"))
    if wanted not in _PREDICTIONS:
        known = known_names(wanted, _PREDICTIONS)
        raise InputError(f"diffusers: unknown prediction {wanted!r:.80} (model.args.prediction): {known}")
    return found, wanted


def _conditions(model: Any) -> tuple[str, ...]:
    """The conditions that the model needs."""
    parameters = inspect.signature(model.forward).parameters
    needed = [name for name in (_CLASSES, _TEXT) if name in parameters and parameters[name].default is inspect.Parameter.empty]
    config = model.config
    classes = any(config.get(key) is not None for key in ("num_class_embeds", "class_embed_type", "num_embeds_ada_norm"))
    return tuple(dict.fromkeys([*([_CLASSES] if classes and _CLASSES in parameters else []), *needed]))


def _shapes(model: Any, conditions: tuple[str, ...], size: int, tokens: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape of a sample and element type of each input.

    Raises:
        InputError: the size of the samples is unknown, or a condition is.
    """
    config = model.config
    sides: Any = size or config.get("sample_size")
    if not sides:
        raise InputError("diffusers: the model has no sample_size: set model.args.size to the height and width of the samples")
    height, width = (sides, sides) if isinstance(sides, int) else tuple(sides)
    found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"images": ((config["in_channels"], height, width), torch.float32)}
    dims = next((value for key in _TEXT_DIMS if isinstance(value := config.get(key), int)), 0)
    known: dict[str, Callable[[], tuple[tuple[int, ...], torch.dtype]]] = {
        _CLASSES: lambda: ((), torch.int64),
        _TEXT: lambda: ((tokens, dims), torch.float32),
    }
    for name in conditions:
        if name not in known:
            raise InputError(f"diffusers: unknown input {name!r:.80} in model.args.inputs: known are {', '.join(known)}")
        found[name] = known[name]()
    return found
