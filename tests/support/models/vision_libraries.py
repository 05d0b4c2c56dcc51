"""The libraries timm and diffusers where they are installed, and small models of it as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.training.coverage_vision import load_torchvision

__all__ = ["diffusers_library", "save_images", "save_timm", "timm_library"]


def timm_library() -> Any:
    """The library; a test without it is skipped."""
    if load_torchvision() is None:
        pytest.skip("torchvision is not installed: pip install 'farflung[timm]'", allow_module_level=True)
    return pytest.importorskip("timm", reason="timm is not installed: pip install 'farflung[timm]'")


def diffusers_library() -> Any:
    """The library; a test without it is skipped."""
    load_torchvision()  # transformers, which diffusers imports, takes it if it is there
    return pytest.importorskip("diffusers", reason="diffusers is not installed: pip install 'farflung[diffusers]'")


def save_timm(name: str, folder: Path, **args: Any) -> Any:
    """Save an architecture of timm with random weights as the library saves it; returns the model."""
    library = timm_library()
    torch.manual_seed(2)
    model = library.create_model(name, **args).eval()
    library.models.save_for_hf(model, folder, model_args=args, safe_serialization=True)
    return model


def save_images(folder: Path, size: int, classes: int = 3) -> None:
    """One PNG file for each of some samples, in a folder for each class."""
    from PIL import Image

    random = np.random.default_rng(4)
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(6):
            pixels = random.integers(0, 256, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label}" / f"{number}.png")
