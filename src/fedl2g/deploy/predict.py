"""`fedl2g predict`: runs an exported model on images and writes the predicted classes as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import TextIOBase
from pathlib import Path
from typing import TextIO
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedl2g.datasets.arrays import images_of_array
from fedl2g.datasets.folders import image_files
from fedl2g.datasets.images import Pixels, decode_images, resize_images
from fedl2g.deploy.programs import PROGRAM, load_program
from fedl2g.errors import DataError, RunError
from fedl2g.files import reason_of

ARRAYS = (".npy", ".npz")


@dataclass(frozen=True)
class ExportedModel:
    """A folder written by `fedl2g export`: its program, its classes and the shape of its images."""

    run: Callable[[torch.Tensor], torch.Tensor]
    classes: list[str]
    image_shape: tuple[int, int, int]


def open_model(folder: Path) -> ExportedModel:
    """Open an exported model."""
    about = folder / "model.json"
    try:
        described = json.loads(about.read_text(encoding="utf-8"))
        _, channels, height, width = described["input"]
        classes = [str(name) for name in described["classes"]]
        shape = (int(channels), int(height), int(width))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(
            f"{about}: cannot be read ({reason_of(error)}); expected a folder written by `fedl2g export`"
        ) from error
    try:
        run = load_program(folder / PROGRAM)
    except (OSError, RuntimeError, ValueError, LookupError, AssertionError, BadZipFile) as error:
        raise RunError(f"{folder / PROGRAM}: cannot be read ({reason_of(error)}); export the model again") from error
    return ExportedModel(run, classes, shape)


def predict(model: ExportedModel, source: Path) -> Iterator[tuple[str, list[float]]]:
    """The name and the scores of every image of a folder, an image file or an array (.npy, or `images` in .npz)."""
    names, batches = _read(source, model.image_shape)
    named = iter(names)
    for batch in batches:
        scores = model.run(torch.from_numpy(batch.astype(np.float32)))
        yield from zip(named, scores.tolist(), strict=False)


def write_csv(model: ExportedModel, found: Iterator[tuple[str, list[float]]], file: TextIO | TextIOBase) -> int:
    """Write a line per image: its name, the predicted class, the score of every class; returns how many."""
    writer = csv.writer(file, lineterminator="\n")
    header = ["input", "class", *(f"score {name}" for name in model.classes)]
    count = 0
    for name, scores in found:
        if not count:  # not before an input that cannot be read is refused
            writer.writerow(header)
        best = max(range(len(scores)), key=scores.__getitem__)
        writer.writerow([name, model.classes[best], *(f"{score:.6g}" for score in scores)])
        count += 1
    return count


def _read(source: Path, shape: tuple[int, int, int]) -> tuple[list[str], Iterator[Pixels]]:
    if source.suffix.lower() in ARRAYS:
        return _read_array(source, shape)
    files = image_files(source) if source.is_dir() else [source]
    if not files:
        raise DataError(f"{source}: holds no images; expected image files, or an array in a .npy or .npz file")
    channels, height, width = shape
    if height != width or channels not in (1, 3):
        raise DataError(
            f"{source}: the model takes images of {channels} x {height} x {width}; give them as an array in a .npy file"
        )
    if not source.is_dir() and not source.is_file():
        raise DataError(f"{source}: no such file or folder; expected images, or an array in a .npy or .npz file")
    decoded = decode_images([(str(file), file.read_bytes) for file in files], height)
    names = [str(file.relative_to(source)) if source.is_dir() else file.name for file in files]
    return names, (batch if channels == 3 else _grey(batch) for batch in decoded)


def _read_array(source: Path, shape: tuple[int, int, int]) -> tuple[list[str], Iterator[Pixels]]:
    try:
        found = np.load(source, allow_pickle=False)
        array: NDArray[np.uint8] = found if source.suffix.lower() == ".npy" else found["images"]
    except (OSError, ValueError, EOFError, LookupError) as error:
        raise DataError(
            f"{source}: cannot be read ({reason_of(error)}); expected an array of images, in .npz by the name 'images'"
        ) from error
    images = images_of_array(array, str(source))
    if images.shape[1] != shape[0]:
        raise DataError(f"{source}: the channels of its images are {images.shape[1]}; the model expects {shape[0]}")
    if images.shape[1:] != shape and shape[1] != shape[2]:
        raise DataError(f"{source}: its images are of shape {images.shape[1:]}; the model expects {shape}")
    square = None if images.shape[1:] == shape else shape[1]
    names = [str(number) for number in range(len(images))]
    return names, (np.ascontiguousarray(batch) for batch in resize_images(images, square))


def _grey(batch: Pixels) -> Pixels:
    """RGB to luminance; images that were grey in their file stay exactly as they are."""
    return np.stack([np.asarray(Image.fromarray(image.transpose(1, 2, 0)).convert("L"))[None] for image in batch])
