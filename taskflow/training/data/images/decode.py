"""Decoding of one picture: read, cropped and resized by Pillow. Runs in background processes."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from taskflow.training.data.rng import uniforms

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Box = tuple[float, float, float, float]  # left, top, right, bottom

_TRIES = 10
_AREA = (0.08, 1.0)  # of a random cut, as a share of the picture's
_RATIO = (3 / 4, 4 / 3)  # of its width to its height
_SHORTER_SIDE = 256 / 224  # to this times the size, before the middle is cut out for validation


def need_pillow() -> None:
    """Raise ImportError that says what to install if Pillow is missing."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ImportError(f"images need Pillow ({error}); install it: pip install 'soap-taskflow[examples]'") from None


def picture(path: str, size: int, channels: int, seed: int, number: int | None) -> Pixels:
    """Return the image file at ``path`` as (channels, size, size), decoded by Pillow.

    ``number``: of the sample, counted over all epochs. It determines a random crop, perhaps mirrored (as in Szegedy et al.,
    "Going deeper with convolutions", arXiv 1409.4842, section 6). None: the middle. ``channels``: 3 (RGB) or 1 (grey). Raises
    ValueError that names the file if it holds no picture.
    """
    from PIL import Image

    try:
        with Image.open(path) as file:
            image = file.convert("RGB" if channels == 3 else "L")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises on broken files
        raise ValueError(f"{path}: not a picture that Pillow can read: {error}") from None
    if number is None:
        return _pixels(image, _middle(*image.size), size)
    draws = uniforms(seed, number, 4 * _TRIES + 1)
    result = _pixels(image, _part(*image.size, draws), size)
    return np.ascontiguousarray(result[:, :, ::-1]) if draws[-1] < 0.5 else result


def enlarged(pixels: Pixels, size: int, channels: int) -> Pixels:
    """Return a small grey picture (height, width) as (channels, size, size), all channels alike."""
    if pixels.shape != (size, size):
        from PIL import Image

        pixels = np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR))
    return np.repeat(pixels[None], channels, axis=0)


def _pixels(image: Image, box: Box, size: int) -> Pixels:
    from PIL import Image as pillow

    pixels = np.asarray(image.resize((size, size), pillow.Resampling.BILINEAR, box=box))
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _middle(width: int, height: int) -> Box:
    """The part that remains if the shorter side is resized a bit larger than needed and the middle is cut out."""
    side = min(width, height) / _SHORTER_SIDE
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _part(width: int, height: int, draws: np.ndarray[Any, np.dtype[np.float64]]) -> Box:
    """A random part of the picture: the first of some tries that lies inside, else the middle."""
    for area, ratio, x, y in draws[: 4 * _TRIES].reshape(_TRIES, 4).tolist():
        wanted = width * height * (_AREA[0] + (_AREA[1] - _AREA[0]) * area)
        shape = exp(log(_RATIO[0]) + (log(_RATIO[1]) - log(_RATIO[0])) * ratio)
        w, h = round(sqrt(wanted * shape)), round(sqrt(wanted / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, top, left + w, top + h
    return _middle(width, height)
