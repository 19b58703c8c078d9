"""Every kind of source, read from small files in its true on-disk format."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import Resize

from fedl2g.datasets import Dataset, dataset_names, describe_datasets, load_dataset
from fedl2g.datasets import loading as loading_module
from fedl2g.datasets.dataset import SIDES, Content
from fedl2g.datasets.download import RemoteFile
from fedl2g.datasets.kinds import NAMED
from fedl2g.datasets.named import CATALOG
from fedl2g.datasets.named_images import (
    DOMAINNET_DOMAINS,
    read_cifar10,
    read_cifar100,
    read_domainnet,
    read_flowers102,
    read_tiny_imagenet,
)
from fedl2g.datasets.tables import Roles
from fedl2g.errors import DataError, SettingError
from fedl2g.schema import image_schema


def pixels_of(content: Content) -> np.ndarray:
    return np.concatenate(list(content.inputs))


def picture(colour: tuple[int, int, int], size: tuple[int, int] = (96, 80), kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, kind)
    return out.getvalue()


def png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def tar_gz(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def zip_of(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def cifar_records(labels: list[list[int]], random: np.random.RandomState) -> tuple[bytes, np.ndarray]:
    images = random.randint(0, 256, (len(labels), 3, 32, 32)).astype(np.uint8)
    data = b"".join(bytes(label) + image.tobytes() for label, image in zip(labels, images, strict=True))
    return data, images


def cifar10_archive(path: Path) -> tuple[Path, np.ndarray]:
    random = np.random.RandomState(0)
    members, images = {}, []
    for number, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        data, batch = cifar_records([[number], [9 - number]], random)
        members[f"cifar-10-batches-bin/{name}"] = data
        images.append(batch)
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    members["cifar-10-batches-bin/batches.meta.txt"] = ("\n".join(names) + "\n\n").encode()
    members["cifar-10-batches-bin/readme.html"] = b"<html>"
    return tar_gz(path, members), np.concatenate(images)


class TestNamed:
    def test_cifar10(self, tmp_path: Path) -> None:
        path, images = cifar10_archive(tmp_path / "cifar-10-binary.tar.gz")
        content = read_cifar10({path.name: path}, 32)
        assert (pixels_of(content) == images).all()
        assert content.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5, 5, 4]
        assert content.class_names[0] == "airplane"
        assert len(content.class_names) == 10
        assert pixels_of(read_cifar10({path.name: path}, 16)).shape == (12, 3, 16, 16)

    def test_cifar100_uses_the_fine_labels(self, tmp_path: Path) -> None:
        random = np.random.RandomState(0)
        train, first = cifar_records([[3, 77], [4, 0]], random)
        test, second = cifar_records([[5, 99]], random)
        names = "\n".join(f"fine{i}" for i in range(100)).encode()
        path = tar_gz(
            tmp_path / "cifar-100-binary.tar.gz",
            {
                "cifar-100-binary/test.bin": test,
                "cifar-100-binary/train.bin": train,
                "cifar-100-binary/fine_label_names.txt": names,
                "cifar-100-binary/coarse_label_names.txt": b"coarse\n",
            },
        )
        content = read_cifar100({path.name: path}, 32)
        assert content.labels.tolist() == [77, 0, 99]
        assert content.class_names[77] == "fine77"
        assert (pixels_of(content) == np.concatenate([first, second])).all()

    @pytest.mark.parametrize(
        "break_it",
        [
            lambda path: path.write_bytes(b"not an archive"),
            lambda path: path.write_bytes(path.read_bytes()[:2000]),
            lambda path: tar_gz(path, {"other/file": b""}),
            lambda path: tar_gz(path, {f"cifar-10-batches-bin/data_batch_{i}.bin": b"short" for i in range(1, 6)}),
        ],
    )
    def test_a_damaged_cifar_archive_is_named(self, tmp_path: Path, break_it: Callable[[Path], object]) -> None:
        path, _ = cifar10_archive(tmp_path / "cifar-10-binary.tar.gz")
        break_it(path)
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: .* delete it and load the dataset again"):
            read_cifar10({path.name: path}, 32)

    def flowers(self, folder: Path) -> dict[str, Path]:
        from scipy.io import savemat  # type: ignore[import-untyped]

        # the tar's order is not by id, as in the published file
        colours = {1: (250, 0, 0), 2: (0, 250, 0), 3: (0, 0, 250), 4: (250, 250, 0)}
        images = {f"jpg/image_{i:05d}.jpg": picture(colours[i], (80 + 40 * i, 90)) for i in (3, 1, 4, 2)}
        tar_gz(folder / "102flowers.tgz", images)
        savemat(folder / "imagelabels.mat", {"labels": np.array([[77, 1, 102, 2]], np.uint8)})
        sets = {"trnid": [[4]], "valid": [[2]], "tstid": [[3, 1]]}
        savemat(folder / "setid.mat", {key: np.array(ids, np.uint16) for key, ids in sets.items()})
        return {path.name: path for path in folder.iterdir()}

    def test_flowers102_pools_train_validation_and_test(self, tmp_path: Path) -> None:
        content = read_flowers102(self.flowers(tmp_path), 64)
        assert content.labels.tolist() == [1, 0, 101, 76]
        assert content.class_names[0] == "pink primrose"
        pixels = pixels_of(content)
        assert pixels.shape == (4, 3, 64, 64)
        brightest = (pixels.mean(axis=(2, 3)) > 125).tolist()
        assert brightest == [[True, True, False], [False, True, False], [False, False, True], [True, False, False]]

    def test_images_of_the_paper_are_stretched_as_by_torchvision(self, tmp_path: Path) -> None:
        """The paper's public code resizes to 64 x 64: nothing is cut off, whatever the proportions."""
        pictures = [Image.fromarray(part) for part in (images(1, 40, 90, 3)[0], images(1, 80, 60, 3)[0])]
        expected = [np.asarray(Resize((64, 64))(part)).transpose(2, 0, 1) for part in pictures]
        for folder in (flowers := tmp_path / "flowers", domains := tmp_path / "domains"):
            folder.mkdir()
        files = self.flowers(flowers)
        members = {f"jpg/image_{i:05d}.jpg": png(pictures[i % 2]) for i in (1, 2, 3, 4)}
        tar_gz(files["102flowers.tgz"], members)
        found = pixels_of(read_flowers102(files, 64))
        assert [(found[n] == expected[i % 2]).all() for n, i in enumerate((4, 2, 3, 1))] == [True] * 4
        lists = self.domainnet(domains)
        listed = [lists[f"sketch_{split}.txt"].read_text().splitlines() for split in ("train", "test")]
        names = [line.split(" ")[0] for line in (*listed[0], *listed[1])]
        zip_of(lists["sketch.zip"], {name: png(pictures[n % 2]) for n, name in enumerate(names)})
        found = pixels_of(read_domainnet(lists, 64))[-len(names) :]
        assert [(found[n] == expected[n % 2]).all() for n in range(len(names))] == [True] * len(names)

    def test_a_missing_flower_is_named(self, tmp_path: Path) -> None:
        files = self.flowers(tmp_path)
        tar_gz(files["102flowers.tgz"], {"jpg/image_00001.jpg": picture((0, 0, 0))})
        with pytest.raises(DataError, match=r"102flowers\.tgz: the image image_00004\.jpg is missing"):
            read_flowers102(files, 64)

    def test_tiny_imagenet(self, tmp_path: Path) -> None:
        inside = "tiny-imagenet-200"
        path = zip_of(
            tmp_path / "tiny-imagenet-200.zip",
            {
                f"{inside}/wnids.txt": b"n02\nn01\n",
                f"{inside}/words.txt": b"n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\ttoad",
                f"{inside}/train/n02/n02_boxes.txt": b"",
                f"{inside}/train/n02/images/n02_0.JPEG": picture((0, 0, 250), (64, 64)),
                f"{inside}/train/n01/images/n01_1.JPEG": picture((250, 0, 0), (64, 64)),
                f"{inside}/train/n01/images/n01_0.JPEG": picture((0, 250, 0), (64, 64)),
                f"{inside}/val/images/val_0.JPEG": picture((0, 0, 0), (64, 64)),
                f"{inside}/test/images/test_0.JPEG": picture((0, 0, 0), (64, 64)),
            },
        )
        content = read_tiny_imagenet({path.name: path}, 64)
        assert content.labels.tolist() == [0, 0, 1]
        assert content.class_names == ("goldfish, Carassius auratus", "toad")
        assert pixels_of(content).argmax(axis=1)[:, 0, 0].tolist() == [1, 0, 2]

    def domainnet(self, folder: Path) -> dict[str, Path]:
        for number, domain in enumerate(DOMAINNET_DOMAINS):
            images = {
                f"{domain}/{thing}/{domain}_00{label}_{i}.jpg": picture((40 * number, 0, 200 * i), (90, 70))
                for label, thing in enumerate(("aircraft_carrier", "zigzag"))
                for i in range(2)
            }
            zip_of(folder / f"{domain}.zip", images)
            lines = [f"{name} {int('zigzag' in name)}" for name in images]
            (folder / f"{domain}_train.txt").write_text("\n".join(lines[1:]) + "\n")
            (folder / f"{domain}_test.txt").write_text(lines[0] + "\n")
        return {path.name: path for path in folder.iterdir()}

    def test_domainnet(self, tmp_path: Path) -> None:
        content = read_domainnet(self.domainnet(tmp_path), 64)
        assert content.group_names == DOMAINNET_DOMAINS
        assert content.class_names == ("aircraft_carrier", "zigzag")
        assert content.groups is not None
        assert content.groups.tolist() == np.repeat(range(6), 4).tolist()
        assert content.labels.tolist() == [0, 1, 1, 0] * 6
        pixels = pixels_of(content)
        assert pixels.shape == (24, 3, 64, 64)
        assert np.allclose(pixels[::4, 0].mean(axis=(1, 2)), 40 * np.arange(6), atol=3)

    @pytest.mark.parametrize("line", ["sketch/zigzag/none.jpg 1", "sketch/zigzag/sketch_001_0.jpg"])
    def test_a_wrong_domainnet_list_is_named(self, tmp_path: Path, line: str) -> None:
        files = self.domainnet(tmp_path)
        files["sketch_test.txt"].write_text(line)
        with pytest.raises(DataError, match="sketch"):
            read_domainnet(files, 64)

    def test_digits_are_exact_blocks_of_the_originals(self, tmp_path: Path) -> None:
        from sklearn.datasets import load_digits

        dataset = load_dataset("digits", data_dir=tmp_path)
        assert (dataset.inputs.shape, dataset.classes) == ((1797, 3, 32, 32), 10)
        assert dataset.inputs.min() == 0
        assert dataset.inputs.max() == 255
        expected = np.rint(load_digits().images * 255 / 16)
        for channel in range(3):
            assert (dataset.inputs[:, channel, 1::4, 2::4] == expected).all()
        assert load_dataset("digits", image_size=28, data_dir=tmp_path).shape == (3, 28, 28)

    def test_the_catalog_is_complete(self) -> None:
        images = {"digits", "cifar10", "cifar100", "flowers102", "tiny-imagenet", "domainnet"}
        assert set(dataset_names()) == images | NAMED.keys()
        for entry in describe_datasets():
            assert entry.kind == NAMED.get(entry.name, "image")
            assert bool(entry.files) == (entry.name not in ("digits", "breast-cancer", "wine"))
            assert len({file.name for file in entry.files}) == len(entry.files)
            assert entry.description.endswith(".")

    def test_a_named_dataset_is_downloaded_read_and_cached(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "downloads").mkdir()
        path, images = cifar10_archive(tmp_path / "downloads" / "cifar-10-binary.tar.gz")
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        files = (RemoteFile("http://127.0.0.1:9/cifar-10-binary.tar.gz", md5),)
        entry = dataclasses.replace(CATALOG["cifar10"], files=files)
        monkeypatch.setattr(loading_module, "CATALOG", {"cifar10": entry})
        dataset = load_dataset("cifar10", data_dir=tmp_path)
        assert (dataset.inputs == images).all()
        path.unlink()  # the cache needs the archive no more
        assert load_dataset("cifar10", data_dir=tmp_path).fingerprint == dataset.fingerprint


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def images(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)


class TestNpz:
    def load(self, tmp_path: Path, **arrays: Any) -> Dataset:
        return load_dataset(save(tmp_path / "mine.npz", **arrays), data_dir=tmp_path / "cache")

    def test_grey_images_of_any_shape(self, tmp_path: Path) -> None:
        pictures = images(6, 10, 7)
        dataset = self.load(tmp_path, images=pictures, labels=[0, 1, 2, 0, 1, 2])
        assert dataset.name == "mine"
        assert dataset.shape == (1, 10, 7)
        assert (dataset.inputs[:, 0] == pictures).all()
        assert dataset.labels.dtype == np.int64
        assert dataset.class_names == ("0", "1", "2")
        assert dataset.groups is None

    def test_colour_images_with_names_and_domains(self, tmp_path: Path) -> None:
        pictures = images(4, 8, 9, 3)
        dataset = self.load(
            tmp_path,
            images=pictures,
            labels=np.array([1, 0, 1, 0], np.uint8),
            class_names=["cat", "dog", "never seen"],
            domains=["winter", "summer", "winter", "winter"],
        )
        assert (dataset.inputs == pictures.transpose(0, 3, 1, 2)).all()
        assert dataset.class_names == ("cat", "dog", "never seen")
        assert dataset.classes == 3
        assert dataset.group_names == ("summer", "winter")
        assert dataset.groups is not None
        assert dataset.groups.tolist() == [1, 0, 1, 1]

    def test_labels_with_gaps_are_numbered_afresh_and_keep_their_names(self, tmp_path: Path) -> None:
        dataset = self.load(tmp_path, images=images(4, 8, 8), labels=[70, 3, 70, 12], domains=[5, 5, 2, 2])
        assert dataset.labels.tolist() == [2, 0, 2, 1]
        assert dataset.class_names == ("3", "12", "70")
        assert dataset.group_names == ("2", "5")

    def test_image_size_makes_squares(self, tmp_path: Path) -> None:
        pictures = images(3, 20, 40, 3)
        name = save(tmp_path / "mine.npz", images=pictures, labels=[0, 1, 1])
        dataset = load_dataset(name, image_size=10, data_dir=tmp_path)
        assert dataset.shape == (3, 10, 10)
        scaled = Image.fromarray(pictures[0]).resize((20, 10), Image.Resampling.BILINEAR).crop((5, 0, 15, 10))
        assert (dataset.inputs[0] == np.asarray(scaled).transpose(2, 0, 1)).all()

    def test_a_changed_file_is_read_again(self, tmp_path: Path) -> None:
        name = save(tmp_path / "mine.npz", images=images(3, 4, 4), labels=[0, 1, 1])
        before = load_dataset(name, data_dir=tmp_path)
        save(tmp_path / "mine.npz", images=images(3, 4, 4), labels=[0, 0, 1])
        os.utime(name, ns=(1, 1))
        after = load_dataset(name, data_dir=tmp_path)
        assert after.fingerprint != before.fingerprint
        assert after.labels.tolist() == [0, 0, 1]

    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"labels": [0]}, "no array named 'images'"),
            ({"images": images(2, 4, 4)}, "no array named 'labels'"),
            ({"images": np.zeros((2, 4, 4), int), "labels": [0, 1]}, "type int64; expected uint8"),
            ({"images": np.full((2, 4, 4), 7.0), "labels": [0, 1]}, "from 7 to 7; expected fractions"),
            ({"images": images(2, 4), "labels": [0, 1]}, r"shape \(2, 4\)"),
            ({"images": images(0, 4, 4), "labels": []}, "not empty"),
            ({"images": images(2, 3, 8, 8), "labels": [0, 1]}, r"transpose\(0, 2, 3, 1\)"),
            ({"images": images(2, 4, 4), "labels": [0]}, r"expected \(2,\)"),
            ({"images": images(2, 4, 4), "labels": [[0], [1]]}, r"expected \(2,\)"),
            ({"images": images(2, 4, 4), "labels": [0.0, 1.0]}, "labels are of type float64"),
            ({"images": images(2, 4, 4), "labels": [0, -1]}, "negative labels"),
            ({"images": images(2, 4, 4), "labels": [0, 2], "class_names": ["a", "b"]}, "labels up to 2, but only 2"),
            ({"images": images(2, 4, 4), "labels": [0, 1], "class_names": [1, 2]}, "store them as strings"),
            ({"images": images(2, 4, 4), "labels": [0, 1], "domains": [0]}, "domains are of shape"),
            ({"images": images(2, 4, 4), "labels": np.array([0, {}], object)}, "file of plain arrays"),
        ],
    )
    def test_what_is_wrong_is_said_in_one_sentence(self, tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
        with pytest.raises(DataError, match=words):
            self.load(tmp_path, **arrays)

    @pytest.mark.parametrize(
        "data",
        [b"", b"nothing", gzip.compress(b"x"), b"PK\x03\x04" + b"0" * 40],
        ids=["empty", "text", "gzip", "broken zip"],
    )
    def test_a_file_that_is_no_npz_is_named(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "mine.npz").write_bytes(data)
        with pytest.raises(DataError, match=r"mine\.npz: cannot be read"):
            load_dataset(str(tmp_path / "mine.npz"), data_dir=tmp_path / "cache")

    def test_a_renamed_npy_is_named(self, tmp_path: Path) -> None:
        with open(tmp_path / "mine.npz", "wb") as out:
            np.save(out, images(2, 4, 4))
        with pytest.raises(DataError, match=r"mine\.npz: cannot be read"):
            load_dataset(str(tmp_path / "mine.npz"), data_dir=tmp_path / "cache")


class TestFolder:
    def make(self, root: Path, files: dict[str, bytes]) -> str:
        for name, data in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        return str(root)

    def test_a_folder_of_classes(self, tmp_path: Path) -> None:
        red, blue = picture((255, 0, 0), kind="PNG"), picture((0, 0, 255), (30, 50), kind="PNG")
        files = {"dog/2.PNG": red, "dog/1.png": blue, "cat/a.png": red, "cat/.hidden.png": b"", "cat/notes.txt": b""}
        dataset = load_dataset(self.make(tmp_path / "pets", files), data_dir=tmp_path / "cache")
        assert (dataset.name, dataset.class_names) == ("pets", ("cat", "dog"))
        assert dataset.shape == (3, 64, 64)
        assert dataset.labels.tolist() == [0, 1, 1]
        assert dataset.inputs[:, :, 0, 0].tolist() == [[255, 0, 0], [0, 0, 255], [255, 0, 0]]
        assert dataset.groups is None

    def test_a_folder_of_domains(self, tmp_path: Path) -> None:
        grey = io.BytesIO()
        Image.new("L", (20, 20), 7).save(grey, "PNG")
        files = {
            "photo/dog/1.png": grey.getvalue(),
            "art/dog/1.png": grey.getvalue(),
            "art/cat/1.png": picture((9, 9, 9)),
        }
        name = self.make(tmp_path / "pets", files)
        dataset = load_dataset(name, image_size=8, data_dir=tmp_path / "cache")
        assert dataset.group_names == ("art", "photo")
        assert dataset.class_names == ("cat", "dog")
        assert dataset.groups is not None
        assert dataset.groups.tolist() == [0, 0, 1]
        assert dataset.labels.tolist() == [0, 1, 1]
        assert dataset.inputs[2].tolist() == np.full((3, 8, 8), 7).tolist()

    def test_a_changed_folder_is_read_again(self, tmp_path: Path) -> None:
        name = self.make(tmp_path / "pets", {"dog/1.png": picture((9, 9, 9)), "cat/1.png": picture((0, 0, 0))})
        assert len(load_dataset(name, data_dir=tmp_path / "cache")) == 2
        self.make(tmp_path / "pets", {"dog/2.png": picture((9, 9, 9))})
        assert len(load_dataset(name, data_dir=tmp_path / "cache")) == 3

    @pytest.mark.parametrize(
        ("files", "words"),
        [
            ({"readme.txt": b""}, "has no images"),
            ({"1.png": b""}, "images 0 folders deep"),
            ({"dog/1.png": b"", "art/cat/1.png": b""}, "images 1 and 2 folders deep"),
            ({"dog/1.png": b"not a picture"}, r"1\.png: is not an image in a known format"),
            ({"dog/1.jpg": picture((1, 2, 3))[:300]}, r"1\.jpg: the image cannot be read"),
        ],
    )
    def test_what_is_wrong_is_said_in_one_sentence(self, tmp_path: Path, files: dict[str, bytes], words: str) -> None:
        with pytest.raises(DataError, match=words):
            load_dataset(self.make(tmp_path / "pets", files), data_dir=tmp_path / "cache")

    def test_links_that_lead_in_circles_end(self, tmp_path: Path) -> None:
        name = self.make(tmp_path / "pets", {"dog/1.png": picture((9, 9, 9))})
        (tmp_path / "pets" / "dog" / "again").symlink_to(tmp_path / "pets", target_is_directory=True)
        with pytest.raises(DataError, match="images 1 and 3 folders deep"):
            load_dataset(name, data_dir=tmp_path / "cache")

    def test_a_link_to_nowhere_is_named(self, tmp_path: Path) -> None:
        name = self.make(tmp_path / "pets", {"dog/1.png": picture((9, 9, 9))})
        (tmp_path / "pets" / "dog" / "2.png").symlink_to(tmp_path / "gone.png")
        with pytest.raises(DataError, match=r"2\.png: cannot be read"):
            load_dataset(name, data_dir=tmp_path / "cache")

    def test_images_keep_their_channels(self, tmp_path: Path) -> None:
        """Grey ones have one channel, unless one of them is in colour; the number that a federation expects counts."""
        ramp = np.arange(64, dtype=np.uint8).reshape(8, 8)
        grey, colour = png(Image.fromarray(ramp)), png(Image.fromarray(np.stack([ramp, ramp + 1, ramp + 2], axis=-1)))
        folder = self.make(tmp_path / "grey", {"x/1.png": grey, "y/2.png": grey})
        found = load_dataset(folder, image_size=8, data_dir=tmp_path / "cache")
        assert found.shape == (1, 8, 8)
        np.testing.assert_array_equal(found.inputs[0, 0], ramp)
        in_colour = Roles(inputs=image_schema(3, 8, 8))
        wide = load_dataset(folder, image_size=8, data_dir=tmp_path / "cache", roles=in_colour)
        np.testing.assert_array_equal(wide.inputs[0], np.stack([ramp] * 3))
        mixed = self.make(tmp_path / "mixed", {"x/1.png": grey, "y/2.png": colour})
        assert load_dataset(mixed, image_size=8, data_dir=tmp_path / "cache").shape == (3, 8, 8)

    def test_16_bit_images_keep_their_depth(self, tmp_path: Path) -> None:
        deep = np.array([[0, 40000], [65535, 257]], np.uint16)
        folder = self.make(tmp_path / "scans", {"x/1.png": png(Image.fromarray(deep))})
        found = load_dataset(folder, image_size=2, data_dir=tmp_path / "cache")
        assert (found.shape, found.inputs.dtype) == ((1, 2, 2), np.uint16)
        np.testing.assert_array_equal(found.inputs[0, 0], deep)
        even = self.make(tmp_path / "even", {"x/1.png": png(Image.fromarray(np.full((9, 7), 40000, np.uint16)))})
        scaled = load_dataset(even, image_size=4, data_dir=tmp_path / "cache")
        assert (scaled.inputs == 40000).all()
        (tmp_path / "scans" / "x" / "2.png").write_bytes(png(Image.new("L", (2, 2))))
        with pytest.raises(DataError, match=r"x/1.png: the image has 16 bits per channel, but .*x/2.png has 8"):
            load_dataset(folder, image_size=2, data_dir=tmp_path / "cache")

    def test_train_and_test_folders_are_a_split(self, tmp_path: Path) -> None:
        red, blue = picture((255, 0, 0)), picture((0, 0, 255))
        files = {"train/a/1.png": red, "train/b/2.png": blue, "test/a/3.png": red, "val/b/4.png": blue}
        found = load_dataset(self.make(tmp_path / "given", files), image_size=8, data_dir=tmp_path / "cache")
        assert (found.class_names, found.groups) == (("a", "b"), None)
        assert found.split is not None
        assert [SIDES[side] for side in found.split] == ["test", "train", "train", "validation"]
        domains = {f"{side}/{domain}/a/1.png": red for side in ("train", "test") for domain in ("ink", "photo")}
        found = load_dataset(self.make(tmp_path / "domains", domains), image_size=8, data_dir=tmp_path / "cache")
        assert (found.class_names, found.group_names) == (("a",), ("ink", "photo"))
        classes = self.make(tmp_path / "classes", {"train/1.png": red, "test/2.png": blue})
        found = load_dataset(classes, image_size=8, data_dir=tmp_path / "cache")
        assert (found.class_names, found.split) == (("test", "train"), None)
        longer = {"Training/a/1.png": red, "Training/b/2.png": blue, "Testing/a/3.png": red}
        found = load_dataset(self.make(tmp_path / "longer", longer), image_size=8, data_dir=tmp_path / "cache")
        assert found.split is not None
        assert ([SIDES[side] for side in found.split], found.group_names) == (["test", "train", "train"], ())
        untested = self.make(tmp_path / "untested", {"train/a/1.png": red, "val/a/2.png": red})
        with pytest.raises(DataError, match="its split has no test samples; expected train and test"):
            load_dataset(untested, image_size=8, data_dir=tmp_path / "cache")
        three = {f"{side}/a/1.png": red for side in ("train", "dev", "test")}
        found = load_dataset(self.make(tmp_path / "three", three), image_size=8, data_dir=tmp_path / "cache")
        assert found.split is not None
        assert ([SIDES[side] for side in found.split], found.groups) == (["validation", "test", "train"], None)
        more = self.make(tmp_path / "more", {**three, "later/a/1.png": red})
        with pytest.raises(DataError, match="its split has 'later'; expected train, test or validation"):
            load_dataset(more, image_size=8, data_dir=tmp_path / "cache")


class TestFunction:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "own_data_for_test.py").write_text(
            "import numpy as np\n"
            "def pictures(): return np.full((4, 6, 5, 3), 9, np.uint8), [0, 1, 0, 1], [0, 0, 1, 1]\n"
            "def nothing(): return None\n"
            "def ragged(): return [[1], [2, 3]], [0, 1]\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.delitem(sys.modules, "own_data_for_test", raising=False)

    def test_a_function_of_the_current_folder(self, tmp_path: Path) -> None:
        before = list(sys.path)
        dataset = load_dataset("own_data_for_test:pictures", samples=2, data_dir=tmp_path / "cache")
        assert dataset.shape == (3, 6, 5)
        assert dataset.group_names == ("0", "1")
        assert sorted(dataset.labels.tolist()) == [0, 1]
        assert sys.path == before

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("own_data_for_test:nothing", "returned the wrong form; expected"),
            ("own_data_for_test:ragged", "cannot be converted to arrays"),
            ("own_data_for_test:missing", "has no 'missing'"),
            ("no_such_module_here:load", "cannot be imported"),
        ],
    )
    def test_a_wrong_function_is_named(self, tmp_path: Path, name: str, words: str) -> None:
        with pytest.raises(SettingError, match=words):
            load_dataset(name, data_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "words"),
    [("cifar-10", "did you mean 'cifar10'"), ("missing/folder", "is not known"), ("", "is not known")],
)
def test_an_unknown_dataset_is_refused_with_the_nearest_name(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load_dataset(name, data_dir=tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mat").write_text("1,2")
    with pytest.raises(DataError, match=r"expected an \.npz, CSV or parquet file or a folder of images"):
        load_dataset(str(tmp_path / "data.mat"), data_dir=tmp_path)
