"""Partitions: the paper's own splits, every sample exactly once, and a sentence for each setting that cannot work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedl2g.datasets import Partition, make_partition, parse_partition
from fedl2g.errors import DataError, SettingError

CIFAR10_SIZES = [1621, 1814, 1211, 2080, 5128, 4264, 1440, 2622, 2974, 3236]
CIFAR10_SIZES += [1164, 1964, 5994, 1527, 3100, 4325, 4252, 3175, 5449, 2660]
CIFAR100_SIZES = [3020, 3053, 2753, 3029, 2640, 2877, 3120, 3047, 2807, 3211]
CIFAR100_SIZES += [2761, 3359, 3290, 2971, 3301, 3132, 3345, 2642, 3035, 2607]


def balanced(classes: int, each: int) -> np.ndarray:
    return np.repeat(np.arange(classes), each)


def make(spec: str, labels: np.ndarray, clients: int, seed: int = 1, domains: np.ndarray | None = None) -> Partition:
    return make_partition(spec, labels, domains, clients=clients, classes=int(labels.max()) + 1, seed=seed)


def all_indices(partition: Partition) -> list[int]:
    return [int(index) for held in partition.train + partition.test for index in held]


@pytest.mark.parametrize(("classes", "each", "sizes"), [(10, 6000, CIFAR10_SIZES), (100, 600, CIFAR100_SIZES)])
def test_seed_1_gives_the_papers_own_dirichlet_split(classes: int, each: int, sizes: list[int]) -> None:
    partition = make("dirichlet:0.1", balanced(classes, each), 20)
    assert partition.sizes.tolist() == sizes
    assert sorted(all_indices(partition)) == list(range(60000))


def test_the_train_test_split_is_scikit_learns_on_the_same_stream() -> None:
    from sklearn.model_selection import train_test_split

    labels = balanced(10, 103)
    partition = make("iid", labels, 7, seed=5)
    random = np.random.RandomState(5)
    shares = np.array_split(random.permutation(len(labels)), 7)
    for client, share in enumerate(shares):
        train, test = train_test_split(share, train_size=0.75, shuffle=True, random_state=random)
        assert partition.train[client].tolist() == train.tolist()
        assert partition.test[client].tolist() == test.tolist()


@pytest.mark.parametrize(
    ("classes", "each", "held", "per_class"), [(10, 6000, 2, 4), (100, 600, 10, 2), (200, 500, 20, 2)]
)
def test_pathological_clients_hold_their_classes(classes: int, each: int, held: int, per_class: int) -> None:
    labels = balanced(classes, each)
    partition = make(f"pathological:{held}", labels, 20)
    counts = partition.counts(labels, classes)
    assert sorted(all_indices(partition)) == list(range(len(labels)))
    assert (np.count_nonzero(counts, axis=1) == held).all()
    assert (np.count_nonzero(counts, axis=0) == per_class).all()
    # all but the last holder of a class take between a tenth of the even share and the even share
    for of_class in counts.T:
        first = of_class[np.flatnonzero(of_class)][:-1]
        assert (first >= each / per_class / 10).all()
        assert (first < each / per_class).all()


# The images of each class, train, validation and test pooled.
FLOWERS102 = [
    *(40, 60, 40, 56, 65, 45, 40, 85, 46, 45, 87, 87, 49, 48, 49, 41, 85, 82, 49, 56, 40, 59, 91, 42, 41, 41, 40, 66),
    *(78, 85, 52, 45, 46, 40, 43, 75, 108, 56, 41, 67, 127, 59, 130, 93, 40, 196, 67, 71, 49, 92, 258, 85, 93, 61, 71),
    *(109, 67, 114, 67, 109, 50, 55, 54, 52, 102, 61, 42, 54, 54, 62, 78, 96, 194, 171, 120, 107, 251, 137, 41, 105),
    *(166, 112, 131, 86, 63, 58, 63, 154, 184, 82, 76, 66, 46, 162, 128, 91, 66, 82, 63, 49, 58, 48),
]


def test_classes_for_which_the_clients_have_no_place_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The paper's own setting: two clients share each class, so 20 x 10 places end with class 99 of Flowers102."""
    labels = np.repeat(np.arange(102), FLOWERS102)
    assert len(labels) == 8189
    partition = make("pathological:10", labels, 20)
    counts = partition.counts(labels, 102)
    assert counts.sum(axis=0).tolist() == [*FLOWERS102[:100], 0, 0]
    assert partition.sizes.sum() == 8083
    assert (np.count_nonzero(counts, axis=1) == 10).all()
    (said,) = caplog.messages
    assert "leaves classes 100 to 101 without a client: 106 of 8189 samples are not used" in said


def test_one_class_left_out_is_named(caplog: pytest.LogCaptureFixture) -> None:
    labels = balanced(4, 50)
    assert make("pathological:1", labels, 5).counts(labels, 4).sum(axis=0).tolist() == [50, 50, 50, 0]
    assert "leaves class 3 without a client: 50 of 200 samples are not used" in caplog.text


def test_pathological_follows_the_described_draws() -> None:
    labels = balanced(10, 6000)
    counts = make("pathological:2", labels, 20).counts(labels, 10)
    expected = np.random.RandomState(1).randint(150, 1500, 3)
    assert counts[:4, 0].tolist() == [*expected, 6000 - expected.sum()]


def test_iid_shares_are_even() -> None:
    assert make("iid", balanced(10, 11), 8).sizes.tolist() == [14] * 6 + [13] * 2


labels_strategy = st.integers(2, 8).flatmap(
    lambda classes: st.lists(st.integers(0, classes - 1), min_size=60, max_size=300).map(
        lambda drawn: np.array([*range(classes), *drawn])
    )
)


@settings(max_examples=40, deadline=None)
@given(labels=labels_strategy, clients=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_every_sample_goes_to_exactly_one_client(labels: np.ndarray, clients: int, seed: int) -> None:
    classes = int(labels.max()) + 1
    domains = np.arange(len(labels)) % min(3, clients)
    infeasible: list[str] = []
    for spec in ("iid", "dirichlet:1.0", f"pathological:{classes}", "domain"):
        try:
            partition = make(spec, labels, clients, seed, domains)
        except DataError:
            infeasible.append(spec)
            continue
        assert sorted(all_indices(partition)) == list(range(len(labels)))
        assert partition.clients == clients
        for train, test in zip(partition.train, partition.test, strict=True):
            assert len(train) == np.floor(0.75 * (len(train) + len(test)))
            assert len(test) >= 1
        assert partition == make(spec, labels, clients, seed, domains)
        assert partition.counts(labels, classes).sum(axis=0).tolist() == np.bincount(labels).tolist()
    assert not {"iid", "domain"} & set(infeasible)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.5", "pathological:2", "domain"])
def test_another_seed_gives_another_partition(spec: str) -> None:
    labels, domains = balanced(10, 60), np.tile([0, 1], 300)
    assert make(spec, labels, 10, 1, domains) != make(spec, labels, 10, 2, domains)


def test_domain_clients_hold_one_domain_each_and_share_evenly() -> None:
    labels, domains = balanced(4, 30), np.tile([0, 1, 2], 40)
    partition = make("domain", labels, 5, domains=domains)
    for client in range(5):
        held = np.concatenate([partition.train[client], partition.test[client]])
        assert set(domains[held]) == {client % 3}
    assert partition.sizes.tolist() == [20, 20, 40, 20, 20]


def test_fewer_clients_than_domains_use_the_first_domains_only() -> None:
    labels, domains = balanced(4, 30), np.tile([0, 1, 2], 40)
    partition = make("domain", labels, 2, domains=domains)
    assert set(domains[all_indices(partition)]) == {0, 1}
    assert partition.sizes.tolist() == [40, 40]


@pytest.mark.parametrize(
    ("spec", "labels", "clients", "words"),
    [
        ("iid", balanced(2, 5), 6, "fewer clients"),
        ("dirichlet:0.01", balanced(2, 50), 40, "larger beta"),
        ("dirichlet:1e-300", balanced(10, 6), 20, "larger beta"),
        ("pathological:3", balanced(2, 50), 4, "lower 3"),
        ("pathological:1", balanced(10, 50), 4, "at least 3 classes per client"),
        ("pathological:2", balanced(2, 10), 10, "fewer clients"),
        ("domain", balanced(2, 10), 2, "another partition"),
    ],
)
def test_infeasible_settings_say_what_to_change_and_end_soon(
    spec: str, labels: np.ndarray, clients: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedl2g.datasets.partition.DIRICHLET_CUTS", 10_000)
    started = time.monotonic()
    with pytest.raises(DataError, match=words):
        make(spec, labels, clients)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("dirichle:0.1", "did you mean 'dirichlet'"),
        ("dirichlet", "dirichlet:0.1"),
        ("dirichlet:-1", "above 0"),
        ("dirichlet:nan", "above 0"),
        ("dirichlet:x", "above 0"),
        ("pathological:1.5", "classes per client"),
        ("pathological:0", "classes per client"),
        ("iid:3", "takes no value"),
        ("file:", "path of a JSON file"),
        ("", "is not known"),
    ],
)
def test_wrong_settings_are_refused_with_the_right_form(spec: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        parse_partition(spec)


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"seed": -1}, {"test_fraction": 0.0}, {"test_fraction": 1.0}])
def test_wrong_numbers_are_refused(wrong: dict[str, float]) -> None:
    numbers = {"clients": 2, "classes": 2, "seed": 0} | wrong
    with pytest.raises(SettingError, match=next(iter(wrong))[:6]):
        make_partition("iid", balanced(2, 9), None, **numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.99])
def test_each_client_trains_and_tests_on_something_at_any_fraction(fraction: float) -> None:
    labels = balanced(2, 6)
    partition = make_partition("iid", labels, None, clients=4, classes=2, seed=0, test_fraction=fraction)
    assert all(len(train) and len(test) for train, test in zip(partition.train, partition.test, strict=True))


def test_a_partition_survives_json(tmp_path: Path) -> None:
    labels = balanced(10, 60)
    partition = make("dirichlet:0.5", labels, 5)
    assert Partition.from_json(partition.to_json()) == partition
    (tmp_path / "partition.json").write_text(partition.to_json())
    assert make(f"file:{tmp_path / 'partition.json'}", labels, 5, seed=99) == partition
    assert partition != "a partition"


@pytest.mark.parametrize("wrap", [lambda lists: lists, lambda lists: {str(i): held for i, held in enumerate(lists)}])
def test_a_file_of_client_indices_is_split_here(tmp_path: Path, wrap: Callable[[list[list[int]]], object]) -> None:
    lists = [list(range(8)), list(range(10, 14))]
    (tmp_path / "clients.json").write_text(json.dumps(wrap(lists)))
    partition = make(f"file:{tmp_path / 'clients.json'}", balanced(2, 10), 2)
    assert partition.sizes.tolist() == [8, 4]
    assert [sorted([*a, *b]) for a, b in zip(partition.train, partition.test, strict=True)] == lists
    assert [len(held) for held in partition.train] == [6, 3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not valid JSON"),
        ('"text"', "list of index lists"),
        ('{"0": [1, 2], "2": [3, 4]}', "without gaps"),
        ("[]", "one list of indices for each client"),
        ("[[1, 2], 3]", "client 1; expected a list of whole numbers"),
        ("[[1, true], [3, 4]]", "whole numbers"),
        ("[[1, 2.0], [3, 4]]", "whole numbers"),
        ("[[1, 99999999999999999999], [3, 4]]", "whole numbers"),
        ("[[1, 2]]", "has 1 clients, but the setting is clients = 2"),
        ("[[1, 2], [3, 20]]", "index 20; expected indices from 0 to 19"),
        ("[[1, -1], [3, 4]]", "index -1"),
        ("[[1, 2], [2, 4]]", "index 2 more than once"),
        ("[[1, 2], [3]]", "client 1 with 1 samples"),
        ('{"train": [[1], [2]], "test": [[3]]}', "2 train lists but 1 test lists"),
        ('{"train": [[1], [2]], "test": [[3], []]}', "client 1 without train or test"),
        ('{"train": [[1], [2]], "test": [[3], [1]]}', "index 1 more than once"),
    ],
)
def test_a_wrong_partition_file_is_refused_in_one_sentence(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "clients.json").write_text(content)
    with pytest.raises(DataError, match=words):
        make(f"file:{tmp_path / 'clients.json'}", balanced(2, 10), 2)


def test_a_missing_partition_file_is_named() -> None:
    with pytest.raises(DataError, match=r"nowhere\.json cannot be read"):
        make("file:nowhere.json", balanced(2, 10), 2)


@pytest.mark.parametrize("text", ["[[0]]", '{"train": [[0]]}', '{"train": 1, "test": 2}'])
def test_json_that_is_no_partition_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"^partition: the JSON has"):
        Partition.from_json(text)


def test_naming_datasets_and_partitions_imports_nothing_heavy() -> None:
    code = (
        "import sys, fedl2g.datasets.partition, fedl2g.report.bubbles, fedl2g.datasets as data; data.dataset_names(); "
        "data.parse_partition('iid'); "
        "print(sorted({'torch', 'torchvision', 'sklearn', 'scipy', 'matplotlib', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
