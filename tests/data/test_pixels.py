"""Augmentation: a function of seed and position, with the pixels that crops and flips have."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.data import Loader, open_source
from farflung.data.pixels import Augmentation, normalized, read_image
from farflung.errors import DataError, InputError
from farflung.graph.ir import TensorSpec
from farflung.job import make_job
from farflung.job.spec import DataSpec, ImageSpec

PLAIN: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
IMAGES = np.random.default_rng(0).random((64, 3, 6, 6), np.float32)


def test_a_flip_mirrors_some_images() -> None:
    found = Augmentation(ImageSpec(flip=0.5, **PLAIN), seed=1)(IMAGES, 0)
    mirrored = [bool((after == before[:, :, ::-1]).all()) for before, after in zip(IMAGES, found, strict=True)]
    kept = [bool((after == before).all()) for before, after in zip(IMAGES, found, strict=True)]
    assert all(one != other for one, other in zip(mirrored, kept, strict=True))
    assert 16 < sum(mirrored) < 48


def test_a_crop_moves_an_image_over_black() -> None:
    spec = ImageSpec(crop=2)
    given = normalized(IMAGES, spec)
    found = Augmentation(spec, seed=1)(given, 0)
    wide = normalized(np.pad(IMAGES, ((0, 0), (0, 0), (2, 2), (2, 2))), spec)
    cuts = {(a, b): wide[:, :, a : a + 6, b : b + 6] for a in range(5) for b in range(5)}
    places = [next(place for place, cut in cuts.items() if (cut[row] == found[row]).all()) for row in range(len(found))]
    assert len(set(places)) > 10


def test_any_division_of_a_step_gives_the_same_images() -> None:
    augmentation = Augmentation(ImageSpec(crop=1, flip=0.5, **PLAIN), seed=5)
    whole = augmentation(IMAGES, 100)
    parts = [Augmentation(ImageSpec(crop=1, flip=0.5, **PLAIN), seed=5)(IMAGES[a : a + 16], 100 + a) for a in range(0, 64, 16)]
    assert whole.tobytes() == np.concatenate(parts).tobytes()
    assert whole.tobytes() != augmentation(IMAGES, 101).tobytes()
    assert whole.tobytes() != Augmentation(ImageSpec(crop=1, flip=0.5, **PLAIN), seed=6)(IMAGES, 100).tobytes()


def test_a_loader_changes_images_of_the_training_only(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for index in range(6):
        folder = tmp_path / "train" / f"class{index % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pillow.fromarray((IMAGES[index].transpose(1, 2, 0) * 255).astype(np.uint8)).save(folder / f"{index}.png")
    places = {"images": TensorSpec(dtype="float32", shape=(3, 3, 6, 6)), "labels": TensorSpec(dtype="int64", shape=(3,))}

    def batches(*, training: bool, **image: Any) -> list[bytes]:
        data = DataSpec(kind="images", path="train", size=6, eval_fraction=0.0, image=ImageSpec(**image))
        source = open_source(data, tmp_path, cache=tmp_path / "cache")
        loader = Loader(data if training else data.unchanged, source, places, [3], seed=2)
        return [loader.batch(step, 0)["images"].tobytes() for step in range(4)]

    plain = batches(training=True)
    assert batches(training=False, crop=2, flip=0.5) == plain
    assert batches(training=True, crop=2, flip=0.5) != plain
    assert batches(training=True, crop=2, flip=0.5) == batches(training=True, crop=2, flip=0.5)
    assert batches(training=True, **PLAIN) != plain


def test_what_is_refused() -> None:
    with pytest.raises(DataError, match=r"data.image changes images of the shape \[3, height, width\], not \[4\]"):
        Augmentation(ImageSpec(flip=1.0), 0)(np.zeros((2, 4), np.float32), 0)
    with pytest.raises(InputError, match=r"data.image is for data.kind = 'images' and for images of a 'dataset', this is 'text'"):
        make_job({"data": {"kind": "text", "path": "x", "image": {"flip": 0.5}}})
    with pytest.raises(InputError, match=r"data.image.flip = 2.0: must be at most 1"):
        make_job({"data": {"kind": "images", "path": "x", "image": {"flip": 2.0}}})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n", "cannot identify image file"),
        (b"P6 9000 9000 255\n", "it has 9000 x 9000 pixels, and at most 67108864 are decoded"),
    ],
)
def test_images_that_are_not_decoded(content: bytes, text: str) -> None:
    """Pillow would give the first one to another program, and take memory for the second one."""
    pytest.importorskip("PIL.Image")
    with pytest.raises(ValueError, match=text):
        read_image(BytesIO(content), 4)
