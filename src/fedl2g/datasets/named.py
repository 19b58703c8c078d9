"""The catalog of named datasets: their descriptions, download addresses and readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from fedl2g.datasets.dataset import Content
from fedl2g.datasets.download import RemoteFile
from fedl2g.datasets.named_images import (
    DOMAINNET_DOMAINS,
    read_cifar10,
    read_cifar100,
    read_digits,
    read_domainnet,
    read_flowers102,
    read_tiny_imagenet,
)
from fedl2g.datasets.named_others import (
    HAR,
    PAMAP2,
    read_ag_news,
    read_breast_cancer,
    read_har,
    read_pamap2,
    read_wine,
)
from fedl2g.datasets.text import MAX_TOKENS, text_schema
from fedl2g.schema import Kind, Schema

Reader: TypeAlias = Callable[[Mapping[str, Path], int], Content]
"""Reads a dataset from its files (by name), at the given image size in pixels."""


@dataclass(frozen=True)
class NamedDataset:
    """A catalog entry: what is known about a dataset before it is loaded."""

    name: str
    description: str
    samples: int
    classes: int
    image_size: int
    """In pixels; 0 for other kinds of data."""
    read: Reader = field(repr=False)
    files: tuple[RemoteFile, ...] = field(default=(), repr=False)
    download_megabytes: int = 0
    groups: int = 0
    """The number of natural clients: domains, subjects."""
    group_column: str = "domain"
    kind: Kind = "image"
    inputs: Schema | None = field(default=None, repr=False)
    """The form of a sample, where it is known before loading and is not an image."""
    version: int = 1  # increased when `read` changes its result, so that cached entries are not used


_CIFAR = "https://www.cs.toronto.edu/~kriz"
_FLOWERS = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
_UCI = "https://archive.ics.uci.edu/static/public"
_AG_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
_DOMAINNET = "https://csr.bu.edu/ftp/visda/2019/multi-source"
# DomainNet's authors publish no checksums; these are the MD5s that its users report for the cleaned version.
_DOMAINNET_ARCHIVES = (
    RemoteFile(f"{_DOMAINNET}/groundtruth/clipart.zip", "cd0d8f2d77a4e181449b78ed62bccf1e"),
    RemoteFile(f"{_DOMAINNET}/infograph.zip", "720380b86f9e6ab4805bb38b6bd135f8"),
    RemoteFile(f"{_DOMAINNET}/groundtruth/painting.zip", "1ae32cdb4f98fe7ab5eb0a351768abfd"),
    RemoteFile(f"{_DOMAINNET}/quickdraw.zip", "bdc1b6f09f277da1a263389efe0c7a66"),
    RemoteFile(f"{_DOMAINNET}/real.zip", "dcc47055e8935767784b7162e7c7cca6"),
    RemoteFile(f"{_DOMAINNET}/sketch.zip", "658d8009644040ff7ce30bb2e820850f"),
)
_DOMAINNET_LISTS = tuple(
    RemoteFile(f"{_DOMAINNET}/domainnet/txt/{domain}_{split}.txt")
    for domain in DOMAINNET_DOMAINS
    for split in ("train", "test")
)

CATALOG: Mapping[str, NamedDataset] = {
    entry.name: entry
    for entry in (
        NamedDataset(
            name="digits",
            description="Handwritten digits of scikit-learn; needs no download.",
            samples=1_797,
            classes=10,
            image_size=32,
            read=read_digits,
        ),
        NamedDataset(
            name="cifar10",
            description="Small photographs of animals and vehicles.",
            samples=60_000,
            classes=10,
            image_size=32,
            read=read_cifar10,
            files=(RemoteFile(f"{_CIFAR}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
            download_megabytes=170,
        ),
        NamedDataset(
            name="cifar100",
            description="Small photographs of animals, plants and things.",
            samples=60_000,
            classes=100,
            image_size=32,
            read=read_cifar100,
            files=(RemoteFile(f"{_CIFAR}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
            download_megabytes=169,
        ),
        NamedDataset(
            name="flowers102",
            description="Photographs of flowers; train, validation and test pooled.",
            samples=8_189,
            classes=102,
            image_size=64,
            read=read_flowers102,
            version=2,
            files=(
                RemoteFile(f"{_FLOWERS}/102flowers.tgz", "52808999861908f626f3c1f4e79d11fa"),
                RemoteFile(f"{_FLOWERS}/imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
                RemoteFile(f"{_FLOWERS}/setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
            ),
            download_megabytes=345,
        ),
        NamedDataset(
            name="tiny-imagenet",
            description="ImageNet photographs at 64 pixels; the train images.",
            samples=100_000,
            classes=200,
            image_size=64,
            read=read_tiny_imagenet,
            files=(RemoteFile("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
            download_megabytes=248,
        ),
        NamedDataset(
            name="domainnet",
            description="The same 345 things in six styles, from photographs to quick drawings.",
            samples=586_575,
            classes=345,
            image_size=64,
            read=read_domainnet,
            version=2,
            files=_DOMAINNET_ARCHIVES + _DOMAINNET_LISTS,
            download_megabytes=18_000,
            groups=6,
        ),
        NamedDataset(
            name="har",
            description="Motion signals of a phone at the waist: 9 channels, windows of 2.56 s.",
            samples=10_299,
            classes=6,
            image_size=0,
            read=read_har,
            files=(RemoteFile(f"{_UCI}/240/human+activity+recognition+using+smartphones.zip"),),
            download_megabytes=61,
            groups=30,
            group_column="subject",
            kind="signal",
            inputs=HAR,
        ),
        NamedDataset(
            name="pamap2",
            description="Motion signals at hand, chest and ankle: 27 channels, windows of 5.12 s.",
            samples=7_400,  # about: the windows are cut when it is read
            classes=12,
            image_size=0,
            read=read_pamap2,
            files=(RemoteFile(f"{_UCI}/231/pamap2+physical+activity+monitoring.zip"),),
            download_megabytes=656,
            groups=9,
            group_column="subject",
            kind="signal",
            inputs=PAMAP2,
        ),
        NamedDataset(
            name="ag_news",
            description="News: the title and first lines of an article; train and test pooled.",
            samples=127_600,
            classes=4,
            image_size=0,
            read=read_ag_news,
            files=(
                RemoteFile(f"{_AG_NEWS}/train.csv", "b1a00f826fdfbd249f79597b59e1dc12", "ag_news_train.csv"),
                RemoteFile(f"{_AG_NEWS}/test.csv", "d52ea96a97a2d943681189a97654912d", "ag_news_test.csv"),
            ),
            download_megabytes=31,
            kind="text",
            inputs=text_schema(MAX_TOKENS),
        ),
        NamedDataset(
            name="breast-cancer",
            description="30 measurements of tumours, of scikit-learn; needs no download.",
            samples=569,
            classes=2,
            image_size=0,
            read=read_breast_cancer,
            kind="table",
        ),
        NamedDataset(
            name="wine",
            description="13 measurements of wines, of scikit-learn; needs no download.",
            samples=178,
            classes=3,
            image_size=0,
            read=read_wine,
            kind="table",
        ),
    )
}
