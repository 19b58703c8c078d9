"""Payloads: what arrives is checked before it is used, whatever it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedl2g.errors import PayloadError
from fedl2g.payload import (
    TensorSpec,
    check_payload,
    class_vector_spec,
    class_vectors,
    from_bytes,
    mean_by_class,
    nbytes,
    tensors_spec,
    to_bytes,
)

SPEC = class_vector_spec(classes=5, width=3, dtype=torch.float32)


def vectors(classes: list[int], **changes: Tensor) -> dict[str, Tensor]:
    return {"ids": torch.tensor(classes, dtype=torch.int64), "rows": torch.ones(len(classes), 3), **changes}


@pytest.mark.parametrize("ids", [[], [0], [4], [0, 2, 3], [0, 1, 2, 3, 4]])
def test_sound_class_vectors_are_accepted(ids: list[int]) -> None:
    check_payload(vectors(ids), SPEC)


NAN = torch.tensor([[1.0, float("nan"), 1.0]])
REFUSED = {
    "nothing": ({}, "entry 'ids' is missing"),
    "an entry missing": ({"ids": torch.tensor([1])}, "entry 'rows' is missing"),
    "an entry too many": (vectors([1], model=torch.ones(2)), "entry 'model' is unknown"),
    "ids of another dtype": (vectors([1], ids=torch.tensor([1], dtype=torch.int32)), "'ids': has dtype torch.int32"),
    "rows of another dtype": (vectors([1], rows=torch.ones(1, 3).double()), "'rows': has dtype torch.float64"),
    "rows of integers": (vectors([1], rows=torch.ones(1, 3).long()), "'rows': has dtype torch.int64"),
    "rows too wide": (vectors([1], rows=torch.ones(1, 4)), r"'rows': has shape \(1, 4\); expected \('k', 3\)"),
    "rows too narrow": (vectors([1], rows=torch.ones(1, 1)), r"'rows': has shape \(1, 1\)"),
    "more rows than ids": (vectors([1], rows=torch.ones(2, 3)), r"'rows': has shape \(2, 3\)"),
    "fewer rows than ids": (vectors([1, 2], rows=torch.ones(1, 3)), r"'rows': has shape \(1, 3\)"),
    "rows flat": (vectors([1], rows=torch.ones(3)), r"'rows': has shape \(3,\)"),
    "ids as a table": (vectors([1], ids=torch.tensor([[1]])), r"'ids': has shape \(1, 1\)"),
    "ids as a number": (vectors([1], ids=torch.tensor(1)), r"'ids': has shape \(\)"),
    "NaN": (vectors([1], rows=NAN), "'rows': holds NaN or infinite"),
    "infinity": (vectors([1], rows=NAN.nan_to_num(float("inf"))), "'rows': holds NaN or infinite"),
    "minus infinity": (vectors([1], rows=NAN.nan_to_num(-float("inf"))), "'rows': holds NaN or infinite"),
    "an unknown class": (vectors([1, 5]), r"'ids': holds a class id outside 0\.\.4"),
    "a negative class": (vectors([-1, 1]), r"'ids': holds a class id outside 0\.\.4"),
    "a class twice": (vectors([2, 2]), "'ids': wrong class ids; expected distinct ones in ascending order"),
    "more ids than classes": (vectors(list(range(6))), "'ids': holds 6 class ids; expected at most 5"),
    "a name without end": (vectors([1]) | {"n" * 10**6: torch.ones(1)}, f"entry '{'n' * 64}' is unknown"),
    "dimensions without end": (vectors([1], rows=torch.ones([1] * 60)), r"'rows': has shape \(1, .{60}; expected"),
    "classes out of order": (vectors([3, 1]), "'ids': wrong class ids; expected distinct ones in ascending order"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused_with_a_sentence(case: str) -> None:
    payload, message = REFUSED[case]
    with pytest.raises(PayloadError, match=message) as caught:
        check_payload(payload, SPEC)
    assert "\n" not in str(caught.value)


def test_a_letter_means_one_size_in_all_entries() -> None:
    spec = {"a": TensorSpec(("n", "m")), "b": TensorSpec(("m",)), "c": TensorSpec(("n", 2))}
    check_payload({"a": torch.ones(4, 3), "b": torch.ones(3), "c": torch.ones(4, 2)}, spec)
    with pytest.raises(PayloadError, match="'b'"):
        check_payload({"a": torch.ones(4, 3), "b": torch.ones(4), "c": torch.ones(4, 2)}, spec)
    with pytest.raises(PayloadError, match="'c'"):
        check_payload({"a": torch.ones(4, 3), "b": torch.ones(3), "c": torch.ones(3, 2)}, spec)


def test_a_specification_of_given_tensors_asks_for_exactly_those() -> None:
    tensors = {"weight": torch.ones(2, 3), "seen": torch.tensor(7)}
    check_payload({"weight": torch.zeros(2, 3), "seen": torch.tensor(0)}, tensors_spec(tensors))
    with pytest.raises(PayloadError, match="'seen': has dtype"):
        check_payload({"weight": torch.zeros(2, 3), "seen": torch.tensor(0.0)}, tensors_spec(tensors))
    with pytest.raises(PayloadError, match="'weight': has shape"):
        check_payload({"weight": torch.zeros(3, 2), "seen": torch.tensor(0)}, tensors_spec(tensors))


def test_class_vectors_are_plain_tensors_without_a_graph() -> None:
    rows = torch.ones(4, 6, requires_grad=True)[:, ::2]
    packed = class_vectors(torch.arange(4)[::2], rows[::2])
    assert not packed["rows"].requires_grad
    assert packed["rows"].is_contiguous()
    assert packed["ids"].is_contiguous()


def test_mean_by_class_by_hand() -> None:
    ids, rows = mean_by_class(
        [
            class_vectors(torch.tensor([0, 3]), torch.tensor([[1.0, 2.0], [10.0, 20.0]])),
            class_vectors(torch.tensor([3]), torch.tensor([[20.0, 0.0]])),
            class_vectors(torch.tensor([], dtype=torch.int64), torch.zeros(0, 2)),
            class_vectors(torch.tensor([1, 3]), torch.tensor([[5.0, 5.0], [0.0, 10.0]])),
        ]
    )
    assert ids.tolist() == [0, 1, 3]
    assert rows.tolist() == [[1.0, 2.0], [5.0, 5.0], [10.0, 10.0]]
    assert rows.dtype == torch.float32


def test_mean_by_class_of_nothing() -> None:
    ids, rows = mean_by_class([class_vectors(torch.tensor([], dtype=torch.int64), torch.zeros(0, 2))])
    assert ids.shape == (0,)
    assert rows.shape == (0, 2)
    with pytest.raises(ValueError, match="at least one"):
        mean_by_class([])


def test_bytes_are_those_of_values_and_ids() -> None:
    assert nbytes(vectors([1, 2])) == 2 * 8 + 2 * 3 * 4
    assert nbytes({}) == 0


PAYLOADS = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.builds(
        lambda shape, dtype, seed: (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 100 - 50).to(
            dtype
        ),
        st.lists(st.integers(0, 4), max_size=3),
        st.sampled_from([torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool]),
        st.integers(0, 99),
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(PAYLOADS)
def test_bytes_round_trip_exactly(payload: dict[str, Tensor]) -> None:
    found = from_bytes(to_bytes(payload))
    assert found.keys() == payload.keys()
    for name, tensor in payload.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_views_are_sent_as_what_they_show() -> None:
    table = torch.arange(12.0).reshape(3, 4)
    found = from_bytes(to_bytes({"column": table[:, 1], "turned": table.T}))
    assert torch.equal(found["column"], table[:, 1])
    assert torch.equal(found["turned"], table.T)


def test_nan_survives_the_wire_to_be_refused_by_the_check() -> None:
    assert torch.isnan(from_bytes(to_bytes({"rows": NAN}))["rows"]).any()


def only_refused(data: bytes) -> None:
    try:
        found = from_bytes(data)
    except PayloadError:  # anything else is a failure
        return
    assert all(isinstance(tensor, Tensor) for tensor in found.values())


def test_refused_bytes_are_one_sentence() -> None:
    with pytest.raises(PayloadError, match="payload: cannot be decoded"):
        from_bytes(b"hello")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_a_payload_or_refused(data: bytes) -> None:
    only_refused(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_are_a_payload_or_refused(data: st.DataObject) -> None:
    good = bytearray(to_bytes(vectors([0, 2])))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    only_refused(bytes(good[: data.draw(st.integers(0, len(good)))]))


@pytest.mark.parametrize("dtype", ["F4", "F8_E8M0", "C64", "F6_E2M3", "XX", "BF16"])
def test_exotic_number_formats_are_a_payload_or_refused(dtype: str) -> None:
    header = f'{{"rows":{{"dtype":"{dtype}","shape":[4],"data_offsets":[0,8]}}}}'.encode()
    only_refused(len(header).to_bytes(8, "little") + header + bytes(8))
