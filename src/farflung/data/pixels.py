"""Images as arrays, through pillow (extra ``images``), and their random changes in training."""

from __future__ import annotations

from collections.abc import Collection
from typing import IO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from farflung.data.base import Array
from farflung.errors import DataError, InputError
from farflung.ids import derive_seed
from farflung.job.spec import ImageSpec

__all__ = ["IMAGE_SUFFIXES", "Augmentation", "image_fields", "normalized", "read_image"]

#: What pillow may take a file for. It decodes other formats with outside programs.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
#: An image has at most so many pixels: a decoded one takes 3 bytes for each, and a copy.
_MOST_PIXELS = 1 << 26
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"})


def read_image(stream: IO[bytes], size: int) -> NDArray[np.float32]:
    """The image in ``stream``, RGB, resized (bilinear) to ``(3, size, size)``, from 0 to 1.

    Raises:
        InputError: pillow is missing.
        ValueError: it is no image, or too large to be decoded.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError("images need pillow: pip install 'farflung[images]'") from None
    try:
        with Image.open(stream, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > _MOST_PIXELS:
                raise ValueError(f"it has {width} x {height} pixels, and at most {_MOST_PIXELS} are decoded")
            pixels = np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR), np.float32)
    except (OSError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from None
    found: NDArray[np.float32] = pixels.transpose(2, 0, 1) / np.float32(255)
    return found


def normalized(images: NDArray[np.float32], spec: ImageSpec) -> NDArray[np.float32]:
    """``images`` (channels third from last) minus mean, over deviation."""
    mean, deviation = (np.array(values, np.float32).reshape(3, 1, 1) for values in (spec.mean, spec.std))
    found: NDArray[np.float32] = (images - mean) / deviation
    return found


@runtime_checkable
class _HasImages(Protocol):
    """A source that can hold images."""

    def image_fields(self, fields: Collection[str]) -> frozenset[str]:
        """Those of ``fields`` that hold images."""


def image_fields(source: object, fields: Collection[str]) -> frozenset[str]:
    """Those of ``fields`` that hold images in ``source``."""
    return source.image_fields(fields) if isinstance(source, _HasImages) else frozenset()


class Augmentation:
    """Random crops and flips of training images: a function of seed and position in the training, and of nothing else.

    A crop adds ``crop`` black pixels on each side and cuts the size out again, as in He et al. 2016, section 4.2.
    """

    def __init__(self, spec: ImageSpec, seed: int) -> None:
        self._spec, self._seed = spec, seed
        self.on = spec.crop > 0 or spec.flip > 0.0

    def __call__(self, images: Array, first: int) -> Array:
        """Changed copies of ``images``, float32 ``(n, 3, height, width)``; ``first``: position of the first in the training."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise DataError(f"data.image changes images of the shape [3, height, width], not {list(images.shape[1:])}")
        black = normalized(np.zeros((3, 1, 1), np.float32), self._spec)
        return np.stack([self._changed(image, black, first + row) for row, image in enumerate(images)])

    def _changed(self, image: Array, black: Array, position: int) -> Array:
        margin, (_, height, width) = self._spec.crop, image.shape
        key = derive_seed("augmentation", self._seed, position)
        key, down = divmod(key, 2 * margin + 1)
        key, right = divmod(key, 2 * margin + 1)
        wide = np.broadcast_to(black, (3, height + 2 * margin, width + 2 * margin)).copy()
        wide[:, margin : margin + height, margin : margin + width] = image
        found = wide[:, down : down + height, right : right + width]
        return found[:, :, ::-1] if key % (1 << 24) < self._spec.flip * (1 << 24) else found
