"""The settings of the ``loss-study`` benchmark."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.harness.base import Settings, bounded

__all__ = ["LATENCY", "LINKS", "LossStudySettings"]

#: The links between the four stages, for AdaTopK: bytes per second, all with a latency of 20 ms.
LINKS = (100e6 / 8, 8e6 / 8, 25e6 / 8)
LATENCY = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStudySettings(Settings):
    """``train``, ``held``, ``first``: texts to train on, to judge by, and to train the model on that is fine-tuned.

    ``images``: a folder with ``train`` and ``test``. ``again``: samples of fine-tuning, which come again. ``minutes``: no
    run begins later. ``partial``: a file for the rows so far; a study goes on from those that are there.
    """

    train: str = ""
    held: str = ""
    first: str = ""
    images: str = ""
    width: int = 64
    sequence: int = 32
    rows: int = 8
    steps: int = 150
    first_steps: int = 400
    tune_steps: int = 150
    again: int = bounded(64)
    lr: float = 3e-3
    tune_lr: float = 3e-4
    image_width: int = 8
    image_rows: int = 16
    image_lr: float = 3e-3
    seeds: int = 3
    minutes: float = 60.0
    models: tuple[str, ...] = ("gpt", "resnet18")
    ways: tuple[str, ...] = ("pipeline", "replicas")
    only: tuple[str, ...] = ()
    partial: str = ""
    plot: str = ""
