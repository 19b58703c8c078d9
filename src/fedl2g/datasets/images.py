"""Decoding and resizing of image files to 8-bit RGB squares, channels first."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedl2g.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels: TypeAlias = NDArray[Any]
"""uint8, uint16 or float32."""
ImageFile: TypeAlias = tuple[str, Callable[[], bytes]]
"""An image's name, for messages, and a function that reads its encoded bytes."""

BATCH = 512


def decode_images(files: Sequence[ImageFile], size: int, *, stretch: bool = False) -> Iterator[Pixels]:
    """Read image files in order, as batches (n, 3, size, size), decoding in threads; see `to_square`."""

    def decode(file: ImageFile) -> Pixels:
        return decode_image(file[0], file[1], size, stretch=stretch)

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(files), BATCH):
            yield np.stack(list(pool.map(decode, files[start : start + BATCH])))


def decode_image(name: str, read: Callable[[], bytes], size: int, *, stretch: bool = False) -> Pixels:
    """Read one image file as (3, size, size); see `to_square`."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(read())) as image:
            if image.mode.startswith(("I", "F")):
                raise DataError(
                    f"{name}: the image has more than 8 bits per channel; expected 8 bits; convert it first"
                )
            return to_square(image.convert("RGB"), size, stretch=stretch)
    except DataError:
        raise
    except UnidentifiedImageError as error:  # its message names the buffer, not the file
        raise DataError(f"{name}: is not an image in a known format; replace or remove it") from error
    except Exception as error:  # decoders and archives raise errors of any kind on damaged bytes
        raise DataError(f"{name}: the image cannot be read ({error}); replace or remove it") from error


def to_square(image: Image, size: int, *, stretch: bool = False) -> Pixels:
    """Scale the shorter side to `size` (bilinear, antialiased) and crop the centre, as (channels, size, size).

    With `stretch` both sides are scaled to `size`: nothing is cut off, but proportions change.
    """
    from PIL import Image as pillow

    width, height = image.size
    if (width, height) == (size, size):
        pass
    elif stretch:
        image = image.resize((size, size), pillow.Resampling.BILINEAR)
    else:
        shorter = min(width, height)
        width, height = int(size * width / shorter), int(size * height / shorter)
        left, top = round((width - size) / 2), round((height - size) / 2)
        image = image.resize((width, height), pillow.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return channels_first(np.asarray(image))


def resize_images(images: Pixels, size: int | None) -> Iterator[Pixels]:
    """Resize images (N, C, H, W) to squares of `size`, in batches; None leaves them unchanged."""
    from PIL import Image

    for start in range(0, len(images), BATCH):
        batch = images[start : start + BATCH]
        if size is None or batch.shape[2:] == (size, size):
            yield batch
            continue
        # Channel by channel: works for any number of channels, with the same result as Pillow's for RGB.
        planes = batch.reshape(-1, *batch.shape[2:])
        # Pillow scales 16 bits as fractions, rounded again afterwards.
        drawn = planes.astype(np.float32) if planes.dtype == np.uint16 else planes
        squares = np.concatenate([to_square(Image.fromarray(plane), size) for plane in drawn])
        squares = np.rint(squares).astype(np.uint16) if planes.dtype == np.uint16 else squares
        yield squares.reshape(len(batch), -1, size, size)


def channels_first(pixels: Pixels) -> Pixels:
    """(H, W) or (H, W, C) to (C, H, W)."""
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
