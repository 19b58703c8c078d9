"""Readers of the named datasets of images.

Every reader works on the published files, pools all labelled images and keeps the published order. Nothing is unpacked:
members are read directly from the archives.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.archives import archive_errors
from fedl2g.datasets.dataset import Content
from fedl2g.datasets.images import ImageFile, Pixels, decode_images, resize_images
from fedl2g.errors import DataError
from fedl2g.schema import image_schema

DOMAINNET_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def read_digits(files: Mapping[str, Path], size: int) -> Content:
    """scikit-learn's bundled digits: 8 x 8 pixels of 0..16, enlarged, in three equal channels.

    Nearest-neighbour enlargement keeps every pixel an exact block (4 x 4 at 32 px), the same on every machine.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    source = np.arange(size) * grey.shape[1] // size
    enlarged = grey[:, source][:, :, source]
    return Content(
        schema=image_schema(3, size, size),
        inputs=[np.repeat(enlarged[:, None], 3, axis=1)],
        labels=bunch.target.astype(np.int64),
        class_names=tuple(str(digit) for digit in range(10)),
    )


def read_cifar10(files: Mapping[str, Path], size: int) -> Content:
    """Cifar10's binary version: records of a label byte and 3 x 32 x 32 pixels, train before test."""
    members = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    return _read_cifar(files["cifar-10-binary.tar.gz"], "cifar-10-batches-bin", members, 1, "batches.meta.txt", size)


def read_cifar100(files: Mapping[str, Path], size: int) -> Content:
    """Cifar100's binary version: records of coarse label, fine label and 3 x 32 x 32 pixels, train before test."""
    path = files["cifar-100-binary.tar.gz"]
    return _read_cifar(path, "cifar-100-binary", ["train.bin", "test.bin"], 2, "fine_label_names.txt", size)


def _read_cifar(path: Path, folder: str, members: list[str], label_bytes: int, names: str, size: int) -> Content:
    with archive_errors(path), tarfile.open(path, "r:gz") as archive:
        raw = {
            name: file.read()
            for name in (*members, names)
            if (file := archive.extractfile(f"{folder}/{name}")) is not None
        }
        joined = np.frombuffer(b"".join(raw[member] for member in members), dtype=np.uint8)
        records = joined.reshape(-1, label_bytes + 3 * 32 * 32)
        class_names = tuple(raw[names].decode("ascii").split())
    return Content(
        schema=image_schema(3, size, size),
        inputs=resize_images(records[:, label_bytes:].reshape(-1, 3, 32, 32), size),
        labels=_checked_labels(records[:, label_bytes - 1], len(class_names), path),
        class_names=class_names,
    )


def read_flowers102(files: Mapping[str, Path], size: int) -> Content:
    """Oxford's 102 flowers: train, validation and test images, in this order, each in the order of setid.mat.

    Stretched to squares, as the paper's public code prepares them.
    """
    from scipy.io import loadmat
    from torchvision.datasets import Flowers102

    with archive_errors(files["setid.mat"]):
        sets = loadmat(files["setid.mat"], squeeze_me=True)
        ids = np.concatenate([np.atleast_1d(sets[key]) for key in ("trnid", "valid", "tstid")]).astype(np.int64)
    with archive_errors(files["imagelabels.mat"]):
        labels = np.atleast_1d(loadmat(files["imagelabels.mat"], squeeze_me=True)["labels"]).astype(np.int64)
        labels = labels[ids - 1] - 1
    path = files["102flowers.tgz"]
    encoded: dict[str, bytes] = {}
    # The tar's order is not the dataset's, and gzip has no random access: keep its 340 MB of JPEGs in memory.
    with archive_errors(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                encoded[PurePosixPath(member.name).name] = file.read()
    names = [f"image_{image_id:05d}.jpg" for image_id in ids.tolist()]
    _require(names, encoded, path)
    class_names = tuple(Flowers102.classes)
    return Content(
        schema=image_schema(3, size, size),
        inputs=decode_images([(name, partial(encoded.__getitem__, name)) for name in names], size, stretch=True),
        labels=_checked_labels(labels, len(class_names), files["imagelabels.mat"]),
        class_names=class_names,
    )


def read_tiny_imagenet(files: Mapping[str, Path], size: int) -> Content:
    """Tiny-ImageNet's train images, class by class in the order of their WordNet ids."""
    path = files["tiny-imagenet-200.zip"]
    with archive_errors(path), zipfile.ZipFile(path) as archive:
        members = sorted(name for name in archive.namelist() if "/train/" in name and name.endswith(".JPEG"))
        words = dict(
            line.split("\t", 1) for line in archive.read("tiny-imagenet-200/words.txt").decode("utf-8").splitlines()
        )
    of_member = [PurePosixPath(name).parts[2] for name in members]
    ids = sorted(set(of_member))
    number = {wordnet_id: position for position, wordnet_id in enumerate(ids)}
    return Content(
        schema=image_schema(3, size, size),
        inputs=_decode_zip(path, members, size),
        labels=np.array([number[wordnet_id] for wordnet_id in of_member], dtype=np.int64),
        class_names=tuple(words.get(wordnet_id, wordnet_id) for wordnet_id in ids),
    )


def read_domainnet(files: Mapping[str, Path], size: int) -> Content:
    """DomainNet, cleaned version: for each domain the images of its train list, then those of its test list.

    Stretched to squares, as the paper's public code prepares the test images (it crops and flips the train images at
    random, once).
    """
    listed: dict[str, list[str]] = {}
    labels: list[int] = []
    domains: list[int] = []
    names: dict[int, str] = {}
    for position, domain in enumerate(DOMAINNET_DOMAINS):
        listed[domain] = []
        for split in ("train", "test"):
            path = files[f"{domain}_{split}.txt"]
            with archive_errors(path):
                for line in path.read_text(encoding="utf-8").splitlines():
                    member, label = line.rsplit(" ", 1)
                    listed[domain].append(member)
                    labels.append(int(label))
                    names[int(label)] = member.split("/")[1]
        domains += [position] * len(listed[domain])
        path = files[f"{domain}.zip"]
        with archive_errors(path), zipfile.ZipFile(path) as archive:
            _require(listed[domain], archive.NameToInfo, path)

    def images() -> Iterator[Pixels]:
        for domain, members in listed.items():
            yield from _decode_zip(files[f"{domain}.zip"], members, size)

    return Content(
        schema=image_schema(3, size, size),
        inputs=images(),
        labels=np.array(labels, dtype=np.int64),
        class_names=tuple(names.get(label, str(label)) for label in range(max(names) + 1)),
        groups=np.array(domains, dtype=np.int64),
        group_names=DOMAINNET_DOMAINS,
    )


def _decode_zip(path: Path, members: list[str], size: int) -> Iterator[Pixels]:
    with zipfile.ZipFile(path) as archive:
        files: list[ImageFile] = [(f"{member} of {path}", partial(archive.read, member)) for member in members]
        yield from decode_images(files, size, stretch=True)


def _checked_labels(labels: NDArray[Any], classes: int, path: Path) -> NDArray[np.int64]:
    found = labels.astype(np.int64)
    if not len(found) or found.min() < 0 or found.max() >= classes:
        raise DataError(f"{path}: its labels do not fit its {classes} classes; delete it and load the dataset again")
    return found


def _require(names: list[str], present: Mapping[str, object], path: Path) -> None:
    for name in names:
        if name not in present:
            raise DataError(f"{path}: the image {name} is missing; delete it and load the dataset again")
