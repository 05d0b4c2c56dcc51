"""The recipe ``hf``: a local folder as ``save_pretrained`` of the ``transformers`` library writes it, and a task.

The folder's ``config.json`` names the architecture. Nothing is downloaded, and no code of the folder runs. The model is built
without memory (the recorder of initializers), and its states have the names of the folder's files, so that each worker reads
its own tensors only.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from farflung.errors import InputError
from farflung.foreign_code import first_line, translated
from farflung.frontends.recipes.adapted_base import BASE_ARGUMENTS, BaseAdapters, adapted_sources
from farflung.frontends.recipes.adapters import ADAPTER_ARGUMENTS, adapter_notes, import_library
from farflung.frontends.recipes.base import CacheShape, Form, Recipe, tokens
from farflung.frontends.recipes.file_sources import file_sources
from farflung.frontends.recipes.serving import library_run, serving_form, use_library_attention
from farflung.frontends.recipes.tasks import Lengths, examples_of, task_called
from farflung.graph.ir import TensorSpec
from farflung.graph.weight_expressions import Expression
from farflung.known_names import did_you_mean

__all__ = ["OWN_ARGUMENTS", "model_folder"]

OWN_ARGUMENTS = ("inputs", "attention", "mask_fraction", "mask_token_id", *ADAPTER_ARGUMENTS, *BASE_ARGUMENTS)
_POSITIONS = ("max_position_embeddings", "n_positions")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_IGNORED = -100

#: What computes the forward of a task: (the model's own forward, its arguments by name) -> the result.
_Forward = Callable[..., Any]


def model_folder(
    *, folder: str, task: str = "causal", sequence: int = 128, target: int = 0, dtype: str = "float32", **more: Any
) -> Recipe:
    """A recipe for the model in ``folder``.

    Args:
        folder: ``config.json``, and usually safetensors and a tokenizer.
        task: a name of ``TASKS``.
        sequence: tokens of a sample (for audio: samples of the waveform).
        target: tokens of a sample's target, for models with encoder and decoder (0: as many as ``sequence``).
        dtype: element type of the weights in training.
        more: ``inputs`` (what the data give the model, with commas; default: those of the task), ``attention`` (``sdpa`` or
            ``eager``), ``mask_fraction`` and ``mask_token_id`` (task ``masked``), the arguments of adapters, and any attribute
            of the configuration.

    Raises:
        InputError: the folder holds no configuration, the library has no such model for the task, or an argument is unknown.
    """
    chosen = task_called(task)
    own = {key: more.pop(key) for key in OWN_ARGUMENTS if key in more}
    config = _config(Path(folder), more, sequence)
    made = _Model(config=config, task=task, auto=chosen.auto, dtype=_dtype(dtype), attention=str(own.get("attention", "sdpa")))
    empty = made.empty()
    adapt = BaseAdapters.of(own, empty)
    adapted = adapt(made.empty())
    lengths = Lengths(sequence=sequence, target=target or sequence)
    inputs = tuple(str(own["inputs"]).replace(" ", "").split(",")) if own.get("inputs") else chosen.inputs
    examples = examples_of(chosen, inputs, config, lengths)
    change = _masking(own, config, Path(folder)) if task == "masked" else None

    def form(forward: _Forward | None, outputs: tuple[str, ...] = ("loss",), example: Any = examples) -> Form:
        def make() -> nn.Module:
            model = adapt(made.build()).train()
            return model if forward is None else _with_forward(model, forward)

        return Form(factory=make, example_inputs=example, outputs=outputs)

    evaluation = form(_counting, ("loss", "correct")) if chosen.counted else form(change)
    return Recipe(
        name=config.model_type,
        train=form(change),
        evaluate=evaluation,
        generate=form(_logits, ("logits",), tokens(sequence, 1)) if chosen.writes else None,
        serve=functools.partial(_served, made, adapt) if chosen.writes else None,
        inputs=inputs,
        labels=tuple(chosen.labels),
        notes=_notes(empty, made.dtype) | adapter_notes(adapt.settings, "") | adapt.notes,
        weights=folder if any((Path(folder) / name).is_file() for name in _WEIGHTS) else None,
        sources=functools.partial(_sources, empty, adapted),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """How the model is built."""

    config: Any
    task: str
    auto: str
    dtype: torch.dtype
    attention: str

    def build(self) -> nn.Module:
        """The model with initial weights, which don't count where the folder has weights.

        Raises:
            InputError: the library has no model of this kind for the task, or can't build it.
        """
        auto = getattr(import_library("transformers", "pip install 'farflung[hf]'"), self.auto)
        if type(self.config) not in auto._model_mapping:
            raise InputError(
                f"hf: transformers has no {self.auto} for model_type {self.config.model_type!r}: choose another model.args.task"
            )

        def describe(error: Exception) -> Exception:
            return InputError(f"hf: the model {self.config.model_type!r} can't be built: {first_line(error)}; check config.json")

        with translated(describe):
            config = type(self.config).from_dict(self.config.to_dict())
            for part in (config, config.get_text_config()):
                part.use_cache = False  # a training graph returns no caches
            made: nn.Module = auto.from_config(config, attn_implementation=self.attention, dtype=self.dtype)
        return made

    def empty(self) -> nn.Module:
        """The model without memory: for its names, types and configuration."""
        with torch.device("meta"):
            return self.build()


def _config(folder: Path, changes: dict[str, Any], sequence: int) -> Any:
    transformers = import_library("transformers", "pip install 'farflung[hf]'")
    if not (folder / "config.json").is_file():
        raise InputError(
            f"hf: model.args.folder = {str(folder)!r} has no config.json: name the folder of a downloaded model "
            "(nothing is downloaded here)"
        )

    def describe(error: Exception) -> Exception:
        return InputError(f"hf: {folder / 'config.json'} can't be used: {first_line(error)}")

    with translated(describe):
        _refuse_code(folder)
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    for key, value in changes.items():
        if not hasattr(config, key):
            known = ("folder", "task", "sequence", "target", "dtype", *OWN_ARGUMENTS)
            raise InputError(
                f"hf: unknown argument model.args.{key}: {did_you_mean(key, (*known, *config.to_dict()))}known are "
                f"{', '.join(known)}, and the keys of {folder / 'config.json'}"
            )
        setattr(config, key, value)
    text = config.get_text_config()
    longest = next((value for key in _POSITIONS if isinstance(value := getattr(text, key, None), int) and value > 0), None)
    if longest is not None and sequence > longest and not hasattr(config, "conv_stride"):
        raise InputError(f"hf: model.args.sequence = {sequence} is longer than the {longest} positions of the model: shorten it")
    return config


def _refuse_code(folder: Path) -> None:
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "auto_map" in document and "model_type" in document:
        from transformers import CONFIG_MAPPING

        if document["model_type"] not in CONFIG_MAPPING:
            raise InputError(
                "it names Python code of its own (auto_map), which is never run: build the model in a file of your own "
                "(recipe = 'file.py:function')"
            )


def _dtype(name: str) -> torch.dtype:
    if name not in ("float32", "bfloat16"):
        raise InputError(f"hf: model.args.dtype = {name!r}: it must be 'float32' or 'bfloat16'")
    found: torch.dtype = getattr(torch, name)
    return found


def _sources(
    plain: nn.Module, adapted: nn.Module, names: Collection[str], spec_of: Callable[[str], TensorSpec]
) -> dict[str, Expression]:
    """What the states are made of, where that is something else than a tensor of the same name."""
    found = adapted_sources(adapted, file_sources(plain, names, spec_of))
    return {state: source for state, source in found.items() if source != state}


def _notes(model: nn.Module, dtype: torch.dtype) -> dict[str, str]:
    """What an export to a folder for ``from_pretrained`` needs."""
    config: Any = model.config
    table = {**config.to_dict(), "architectures": [type(model).__name__], "dtype": str(dtype).removeprefix("torch.")}
    table.pop("use_cache", None)
    return {"transformers": json.dumps(table, sort_keys=True, default=str), "prefix": ""}


def _with_forward(model: nn.Module, forward: _Forward) -> nn.Module:
    """``model``, whose forward is ``forward(the model's own forward, ...)``; the names of its states stay."""
    original = model.forward

    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return forward(original, *args, **kwargs)

    model.forward = changed
    return model


def _counting(forward: _Forward, **given: Tensor) -> dict[str, Tensor]:
    """The loss, and the number of right answers."""
    found = forward(**given)
    return {"loss": found.loss, "correct": (found.logits.argmax(dim=-1) == given["labels"]).sum()}


def _logits(forward: _Forward, input_ids: Tensor) -> Tensor:
    found: Tensor = forward(input_ids=input_ids).logits
    return found


def _served(made: _Model, adapt: BaseAdapters, shape: CacheShape) -> Form:
    """The form with key-value caches."""
    return serving_form(
        lambda: adapt(use_library_attention(made.build())), lambda: adapt(use_library_attention(made.empty())), library_run, shape
    )


def _masking(own: dict[str, Any], config: Any, folder: Path) -> _Forward | None:
    """Draw masked places inside the graph, so that the data stay plain text (``None``: the data come masked)."""
    fraction = float(own.get("mask_fraction", 0.15))
    if not fraction:
        return None
    token = int(own["mask_token_id"]) if "mask_token_id" in own else _mask_token(folder, config)

    def masked(forward: _Forward, **given: Tensor) -> Any:
        labels = given["labels"]
        places = torch.bernoulli(torch.full(labels.shape, fraction, device=labels.device)).bool()
        changed = {
            "input_ids": given["input_ids"].masked_fill(places, token),
            "labels": labels.masked_fill(~places, _IGNORED),
        }
        return forward(**(given | changed))

    return masked


def _mask_token(folder: Path, config: Any) -> int:
    transformers = import_library("transformers", "pip install 'farflung[hf]'")
    if (folder / "tokenizer_config.json").is_file():
        with translated(lambda error: InputError(f"hf: the tokenizer in {folder} can't be read: {first_line(error)}")):
            found = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True).mask_token_id
        if found is not None:
            return int(found)
    raise InputError(
        f"hf: the token that stands for masked places is unknown ({folder} has no tokenizer with a mask token): set "
        "model.args.mask_token_id, or mask_fraction = 0 for data that come masked"
    )
