"""Text by a trained model, from the newest checkpoint of a run, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.checkpoint import CheckpointReader, ModelFiles, locate
from farflung.data.job_source import open_tokenizer
from farflung.data.tokenizers import FileTokenizer, Tokenizer
from farflung.errors import CheckpointError, DataError, InputError
from farflung.job import JobSpec
from farflung.job import from_json as job_from_json
from farflung.step.evaluation.sampling import draw_token

__all__ = ["Sampling", "TextWriter", "open_writer", "run_tokenizer"]

#: A run that still trains removes old checkpoints; then the next one is read.
_ATTEMPTS = 3
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn from the logits.

    ``temperature``: 0 takes the likeliest token. ``top_k``: only so many of the likeliest tokens (0: all). ``top_p``: only the
    likeliest tokens whose probabilities sum up to at least this (Holtzman et al., 2020).

    Raises:
        InputError: a value is out of its range.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise InputError(f"--temperature must be 0 or more, got {self.temperature:g}: 0 takes the likeliest token")
        if self.top_k < 0:
            raise InputError(f"--top-k must be 0 (all tokens) or more, got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"--top-p must be above 0 and at most 1, got {self.top_p:g}")
        if self.seed < 0:
            raise InputError(f"--seed must be 0 or more, got {self.seed}")

    def draw(self, logits: NDArray[np.float64], random: np.random.Generator) -> int:
        """A token; ``logits`` are ``(vocabulary,)``."""
        return draw_token(logits, random, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


class TextWriter:
    """A model of a checkpoint (``step``) with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Tokenizer, step: int) -> None:
        """``model``: a ``TextModel`` of ``frontends.text_model``."""
        self._model, self._tokenizer, self.step = model, tokenizer, step

    def write(self, prompt: str, most: int, sampling: Sampling) -> Iterator[str]:
        """The text after ``prompt`` in pieces as they are made: at most ``most`` tokens, fewer where the text ends.

        Raises:
            InputError: the prompt is empty.
            DataError: the tokenizer does not know a character of the prompt.
        """
        tokens = self._tokenizer.encode(prompt)
        if not tokens:
            raise InputError("the prompt is empty: give --prompt at least one character")
        random = np.random.default_rng(sampling.seed)
        end = getattr(self._tokenizer, "end", None)
        begin, shown = len(tokens), ""
        for _ in range(most):
            token = sampling.draw(self._model.logits(tokens), random)
            if token == end:
                break
            tokens.append(token)
            text = self._tokenizer.decode(tokens[begin:])
            if text.endswith(_REPLACEMENT):
                continue  # the bytes of a character are not complete
            yield text[len(shown) :]
            shown = text
        rest = self._tokenizer.decode(tokens[begin:])[len(shown) :]
        if rest:
            yield rest


def open_writer(folder: Path, data: Path, step: int | None = None) -> TextWriter:
    """The model of a run with the states of its newest checkpoint; the run may still train.

    Args:
        folder: the run's folder, or that of a checkpoint.
        data: the folder that the job's ``data`` paths start from on this machine, for a tokenizer that the run does not keep.
        step: another checkpoint than the newest one.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
        InputError: the model's recipe is not on this machine, or the run is not one on text.
        DataError: the tokenizer is not on this machine.
    """
    store, named = locate(folder)
    chosen = named if step is None else step
    for attempt in range(_ATTEMPTS):
        reader = CheckpointReader.from_folder(store.folder, chosen)
        try:
            return _writer(reader, store.folder.parent, data)
        except CheckpointError:
            removed = chosen is None and reader.manifest.step not in store.steps()
            if attempt == _ATTEMPTS - 1 or not removed:
                raise
    raise AssertionError("the last attempt returns or raises")


def _writer(reader: CheckpointReader, run_folder: Path, data: Path) -> TextWriter:
    from farflung.frontends.text_model import TextModel

    job = job_from_json(reader.manifest.job)
    if job.model is None:
        raise InputError(
            "this run was submitted by a Python program, so only that program has its model: "
            "load the weights there (farflung checkpoint export RUN weights.safetensors)"
        )
    tokenizer = run_tokenizer(job, run_folder, data)
    states = reader.manifest.states
    model = TextModel.load(job.model, states, lambda name: reader.read((name,))[name], reader.manifest.notes)
    return TextWriter(model, tokenizer, reader.manifest.step)


def run_tokenizer(job: JobSpec, run_folder: Path, data: Path) -> Tokenizer:
    """The tokenizer that the run keeps, or the one on this machine."""
    kept = ModelFiles(run_folder).tokenizer
    if kept is not None and job.data.tokenizer not in ("bytes", "chars"):
        return FileTokenizer(kept, job.data.tokenizer)
    try:
        return open_tokenizer(job.data, data)
    except DataError as error:
        raise DataError(f"{error}; --data names the folder that the job's data paths start from") from None
