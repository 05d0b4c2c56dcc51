"""What a model of the ``transformers`` library is trained for: its class, what it reads, and the shapes of its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farflung.errors import InputError
from farflung.known_names import known_names

__all__ = ["TASKS", "Lengths", "Task", "examples_of", "task_called"]

_IDS = "input_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a sample, and tokens of its target (encoder and decoder)."""

    sequence: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """``auto``: the class of ``transformers`` that chooses the model's class.

    ``inputs``: what the model reads by default. ``labels``: its labels, and their shape without the batch. ``counted``: the
    evaluation counts right answers. ``writes``: the model writes text.
    """

    auto: str
    inputs: tuple[str, ...]
    labels: Mapping[str, Callable[[Lengths], tuple[int, ...]]]
    counted: bool = False
    writes: bool = False


def _tokens(lengths: Lengths) -> tuple[int, ...]:
    return (lengths.sequence,)


def _targets(lengths: Lengths) -> tuple[int, ...]:
    return (lengths.target,)


def _one(lengths: Lengths) -> tuple[int, ...]:
    return ()


#: Tasks by name, as a job writes them.
TASKS: Mapping[str, Task] = {
    "causal": Task(auto="AutoModelForCausalLM", inputs=(_IDS,), labels={"labels": _tokens}, writes=True),
    "masked": Task(auto="AutoModelForMaskedLM", inputs=(_IDS,), labels={"labels": _tokens}),
    "seq2seq": Task(auto="AutoModelForSeq2SeqLM", inputs=(_IDS,), labels={"labels": _targets}),
    "sequence_classification": Task(
        auto="AutoModelForSequenceClassification", inputs=(_IDS,), labels={"labels": _one}, counted=True
    ),
    "token_classification": Task(auto="AutoModelForTokenClassification", inputs=(_IDS,), labels={"labels": _tokens}),
    "question_answering": Task(
        auto="AutoModelForQuestionAnswering", inputs=(_IDS,), labels={"start_positions": _one, "end_positions": _one}
    ),
    "image_classification": Task(
        auto="AutoModelForImageClassification", inputs=("pixel_values",), labels={"labels": _one}, counted=True
    ),
    "audio_classification": Task(
        auto="AutoModelForAudioClassification", inputs=("input_values",), labels={"labels": _one}, counted=True
    ),
    "speech": Task(auto="AutoModelForSpeechSeq2Seq", inputs=("input_features",), labels={"labels": _targets}),
    "image_text": Task(auto="AutoModelForImageTextToText", inputs=("pixel_values", _IDS), labels={"labels": _tokens}),
}


def task_called(name: object) -> Task:
    """The task ``name``.

    Raises:
        InputError: it is unknown.
    """
    found = TASKS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InputError(f"hf: unknown task {name!r}: {known_names(name, TASKS)}")
    return found


def examples_of(task: Task, inputs: tuple[str, ...], config: Any, lengths: Lengths) -> Callable[[int], Any]:
    """What makes a micro-batch (name -> tensor) of a given number of samples.

    Raises:
        InputError: the shape of an input is unknown.
    """
    shapes = {name: _shape(name, config, lengths) for name in inputs}
    labels = {name: shape(lengths) for name, shape in task.labels.items()}

    def make(batch: int) -> dict[str, Tensor]:
        found = {name: torch.zeros(batch, *shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
        return found | {name: torch.zeros(batch, *shape, dtype=torch.int64) for name, shape in labels.items()}

    return make


def _shape(name: str, config: Any, lengths: Lengths) -> tuple[tuple[int, ...], torch.dtype]:
    if name == "pixel_values":
        seen = getattr(config, "vision_config", config)
        size: Any = getattr(seen, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        return (getattr(seen, "num_channels", 3), height, width), torch.float32
    if name == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 1500)
        return (getattr(config, "num_mel_bins", 80), frames), torch.float32
    if name == "input_values":
        return (lengths.sequence,), torch.float32
    if name in ("decoder_input_ids", "decoder_attention_mask"):
        return (lengths.target,), torch.int64
    if name in (_IDS, "attention_mask", "token_type_ids", "position_ids"):
        return (lengths.sequence,), torch.int64
    raise InputError(
        f"hf: unknown input {name!r} in model.args.inputs: known are input_ids, attention_mask, token_type_ids, position_ids, "
        "decoder_input_ids, decoder_attention_mask, pixel_values, input_features, input_values"
    )
