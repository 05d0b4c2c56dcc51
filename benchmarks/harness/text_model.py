"""A language model by its sizes, on text that is made up where a benchmark runs: the sections of its job."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from farflung.job.spec import DataSpec, ModelSpec

__all__ = ["Gpt2Sizes", "gpt2_of", "made_up_text"]


class Gpt2Sizes(Protocol):
    """What settings of a benchmark say of a GPT-2."""

    @property
    def layers(self) -> int:
        """Transformer blocks."""

    @property
    def width(self) -> int:
        """Of the embeddings."""

    @property
    def heads(self) -> int:
        """Of the attention."""

    @property
    def vocabulary(self) -> int:
        """Tokens that it knows."""

    @property
    def sequence(self) -> int:
        """Tokens of a sample."""


def gpt2_of(sizes: Gpt2Sizes) -> ModelSpec:
    """GPT-2 of these sizes."""
    args: dict[str, int | float | bool | str | list[int] | None] = {
        "n_layer": sizes.layers,
        "n_embd": sizes.width,
        "n_head": sizes.heads,
        "vocab_size": sizes.vocabulary,
        "sequence": sizes.sequence,
    }
    return ModelSpec(recipe="gpt2", args=args)


def made_up_text(folder: Path, sequence: int, samples: int = 200) -> DataSpec:
    """Write a text of ``samples`` samples of ``sequence`` letters into ``folder``, the same each time, and say how it is read."""
    text = "".join(chr(97 + (7 * i + i * i // 11) % 26) for i in range(samples * sequence))
    (folder / "text.txt").write_text(text, encoding="ascii")
    return DataSpec(kind="text", path=".", glob="*.txt", sequence=sequence)
