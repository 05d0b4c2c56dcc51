"""Micro-batches for the tasks of ``coverage_models``, by the arguments that a class's forward takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import torch

__all__ = ["LABELS", "TASKS", "VOCABULARY", "Batch", "model_batch"]

Batch: TypeAlias = Mapping[str, torch.Tensor]
#: A batch of a seed, a configuration, and the names of the forward's arguments.
_Maker: TypeAlias = Callable[[int, Any, Collection[str]], Batch]
_ROWS, _LENGTH, VOCABULARY, LABELS = 2, 12, 99, 3
_SAMPLES = 4000
#: Attributes that hold the width of a frame of sound, of a configuration or of that of its encoder.
_FRAME = ("feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins", "input_dim", "feature_size")


def _tokens(seed: int, *shape: int, high: int = 80) -> torch.Tensor:
    return torch.randint(5, high, shape, generator=torch.Generator().manual_seed(seed))


def _floats(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _small(seed: int, *shape: int, high: int = LABELS) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed + 1))


def _image_shape(config: Any) -> tuple[int, int, int]:
    size = getattr(config, "image_size", 32)
    size = size if isinstance(size, int) else size[0]
    return getattr(config, "num_channels", 3), size, size


def _text(labels: Callable[[int], Batch]) -> _Maker:
    return lambda seed, config, takes: {"input_ids": _tokens(seed, _ROWS, _LENGTH), **labels(seed)}


def _image(labels: Callable[[int, Any], Batch]) -> _Maker:
    def make(seed: int, config: Any, takes: Collection[str]) -> Batch:
        if "pixel_values" not in takes:  # an image as a sequence of colors
            return {"input_ids": _tokens(seed, _ROWS, _LENGTH), **labels(seed, config)}
        return {"pixel_values": _floats(seed, _ROWS, *_image_shape(config)), **labels(seed, config)}

    return make


def _sound(labels: Callable[[int], Batch]) -> _Maker:
    return lambda seed, config, takes: {**_heard(seed, config, takes), **labels(seed)}


def _heard(seed: int, config: Any, takes: Collection[str]) -> Batch:
    """Sound as frames or samples; text alone for a language model that can also hear."""
    if "input_ids" in takes:
        return {"input_ids": _tokens(seed, _ROWS, _LENGTH)}
    inner = getattr(config, "encoder_config", None)
    widths = [getattr(own, name) for own in (config, inner) for name in _FRAME if isinstance(getattr(own, name, None), int)]
    positions = getattr(config, "max_source_positions", None)
    if "input_values" in takes:
        frames = hasattr(config, "num_mel_bins") and hasattr(config, "frequency_stride")  # images of sound
        return {"input_values": _floats(seed, _ROWS, *((config.max_length, widths[0]) if frames else (_SAMPLES,)))}
    if positions is not None and hasattr(config, "num_mel_bins"):  # bands first, as in Whisper
        return {"input_features": _floats(seed, _ROWS, widths[0], 2 * positions)}
    return {"input_features": _floats(seed, _ROWS, 64, widths[0])}


#: Task -> (mapping of transformers from model types to classes, what makes a batch).
TASKS: Mapping[str, tuple[str, _Maker]] = {
    "causal language modeling": (
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        _text(lambda seed: {"labels": _tokens(seed, _ROWS, _LENGTH)}),
    ),
    "masked language modeling": (
        "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        _text(lambda seed: {"labels": _tokens(seed + 1, _ROWS, _LENGTH)}),
    ),
    "sequence to sequence": (
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        _text(lambda seed: {"labels": _tokens(seed + 1, _ROWS, _LENGTH)}),
    ),
    "sequence classification": (
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        _text(lambda seed: {"labels": _small(seed, _ROWS)}),
    ),
    "token classification": (
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
        _text(lambda seed: {"labels": _small(seed, _ROWS, _LENGTH)}),
    ),
    "question answering": (
        "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
        _text(lambda seed: {"start_positions": _small(seed, _ROWS), "end_positions": _small(seed + 1, _ROWS)}),
    ),
    "multiple choice": (
        "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
        lambda seed, config, takes: {"input_ids": _tokens(seed, _ROWS, 2, _LENGTH), "labels": _small(seed, _ROWS, high=2)},
    ),
    "next sentence prediction": (
        "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES",
        _text(lambda seed: {"labels": _small(seed, _ROWS, high=2)}),
    ),
    "image classification": (
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        _image(lambda seed, config: {"labels": _small(seed, _ROWS)}),
    ),
    "semantic segmentation": (
        "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
        _image(lambda seed, config: {"labels": _small(seed, _ROWS, *_image_shape(config)[1:])}),
    ),
    "audio classification": (
        "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
        _sound(lambda seed: {"labels": _small(seed, _ROWS)}),
    ),
    "speech recognition (CTC)": (
        "MODEL_FOR_CTC_MAPPING_NAMES",
        _sound(lambda seed: {"labels": _tokens(seed, _ROWS, 4, high=30)}),
    ),
    "speech to text": (
        "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
        _sound(lambda seed: {"labels": _tokens(seed + 1, _ROWS, _LENGTH)}),
    ),
}


def model_batch(model: type, task: str, seed: int, config: Any) -> Batch:
    """A micro-batch by keyword for the class ``model``; each seed gives another one."""
    return TASKS[task][1](seed, config, inspect.signature(model.forward).parameters)  # type: ignore[attr-defined]
