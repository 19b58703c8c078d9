"""Decoding and resizing of image files to squares, channels first: grey of 8 or 16 bits, or 8-bit RGB."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedl2g.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels: TypeAlias = NDArray[Any]
"""uint8, uint16 or float32."""
ImageFile: TypeAlias = tuple[str, Callable[[], bytes]]
"""An image's name, for messages, and a function that reads its encoded bytes."""
Mode: TypeAlias = Literal["L", "RGB", "I;16"]
"""Pillow's names of grey, colour and 16-bit grey."""
MODES: dict[int, Mode] = {1: "L", 3: "RGB"}
"""By the number of channels."""

BATCH = 512
_GREY = ("1", "L", "LA", "La")
_MAX_16_BITS = 65535


def mode_of(paths: Sequence[Path]) -> Mode:
    """The mode in which all of these images are read: grey (of 8 or 16 bits) if all headers say so, else RGB."""
    with ThreadPoolExecutor() as pool:
        return _common_mode(list(pool.map(_header, map(str, paths), [partial(Path, path) for path in paths])))


def mode_and_size(files: Sequence[ImageFile]) -> tuple[Mode, int | None]:
    """The mode in which all of these images are read, and their size in pixels if they are squares of one size."""
    headers = [_header(name, partial(_in_memory, read)) for name, read in files]
    sizes = {header.size for header in headers}
    width, height = next(iter(sizes), (0, 1))
    return _common_mode(headers), width if len(sizes) == 1 and width == height else None


class _Header(NamedTuple):
    name: str
    mode: str
    size: tuple[int, int]


def _header(name: str, source: Callable[[], Path | io.BytesIO]) -> _Header:
    with _opened(name, source) as image:
        return _Header(name, image.mode, image.size)


def _common_mode(headers: Sequence[_Header]) -> Mode:
    deep = [header for header in headers if header.mode.startswith("I")]
    if deep and (shallow := next((header for header in headers if not header.mode.startswith("I")), None)):
        raise DataError(
            f"{deep[0].name}: the image has 16 bits per channel, but {shallow.name} has 8; expected one of the two "
            "for all; convert some of them"
        )
    if deep:
        return "I;16"
    return "L" if all(header.mode in _GREY for header in headers) else "RGB"


def decode_images(
    files: Sequence[ImageFile], size: int, mode: Mode = "RGB", *, stretch: bool = False
) -> Iterator[Pixels]:
    """Read image files in order, as batches (n, channels, size, size), decoding in threads; see `to_square`."""

    def decode(file: ImageFile) -> Pixels:
        return decode_image(*file, size, mode, stretch=stretch)

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(files), BATCH):
            yield np.stack(list(pool.map(decode, files[start : start + BATCH])))


def decode_image(
    name: str, read: Callable[[], bytes], size: int, mode: Mode = "RGB", *, stretch: bool = False
) -> Pixels:
    """Read one image file as (channels, size, size); see `to_square`."""
    with _opened(name, partial(_in_memory, read)) as image:
        if image.mode.startswith("I") != (mode == "I;16"):
            has, expected = ("16", "8") if mode != "I;16" else ("8", "16")
            raise DataError(f"{name}: the image has {has} bits per channel; expected {expected} bits; convert it first")
        if mode != "I;16":
            return to_square(image.convert(mode), size, stretch=stretch)
        return _to_16_bits(to_square(_as_fractions(image), size, stretch=stretch))


def _in_memory(read: Callable[[], bytes]) -> io.BytesIO:
    return io.BytesIO(read())


@contextmanager
def _opened(name: str, source: Callable[[], Path | io.BytesIO]) -> Iterator[Image]:
    """An image whose errors name its file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(source()) as image:
            if image.mode.startswith("F"):
                raise DataError(
                    f"{name}: the image has fractions as pixels; expected 8 or 16 bits; give fractions as arrays, in "
                    "an .npz file"
                )
            yield image
    except DataError:
        raise
    except UnidentifiedImageError as error:  # its message names the buffer, not the file
        raise DataError(f"{name}: is not an image in a known format; replace or remove it") from error
    except Exception as error:  # decoders and archives raise errors of any kind on damaged bytes
        raise DataError(f"{name}: the image cannot be read ({error}); replace or remove it") from error


def _as_fractions(image: Image) -> Image:
    """An image of more than 8 bits as float32, the only such form that Pillow scales."""
    from PIL import Image

    values = np.asarray(image)
    if values.min() < 0 or values.max() > _MAX_16_BITS:
        raise ValueError(f"values from {values.min()} to {values.max()}; expected 0 to {_MAX_16_BITS}")
    return Image.fromarray(values.astype(np.float32))


def _to_16_bits(pixels: Pixels) -> Pixels:
    return np.rint(pixels).astype(np.uint16)


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
        squares = _to_16_bits(squares) if planes.dtype == np.uint16 else squares
        yield squares.reshape(len(batch), -1, size, size)


def channels_first(pixels: Pixels) -> Pixels:
    """(H, W) or (H, W, C) to (C, H, W)."""
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
