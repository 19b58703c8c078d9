"""Thousands of malformed payloads: refused with a clear sentence, or sound by an independent judgement."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import torch
from fuzz_helpers import Fuzz, spoiled_text, strange
from torch import Tensor

from fedl2g.learning.client import Task
from fedl2g.methods.base import ServerHalf
from fedl2g.methods.low_rank import check_packed, compress
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload, check_payload, class_vector_spec, from_bytes, tensors_spec, to_bytes
from fedl2g.schema import image_schema

CLASSES, WIDTH = 5, 3
SPEC = class_vector_spec(CLASSES, WIDTH, torch.float32)


def _good(draw: random.Random) -> Payload:
    ids = sorted(draw.sample(range(CLASSES), draw.randrange(CLASSES + 1)))
    return {"ids": torch.tensor(ids, dtype=torch.int64), "rows": torch.randn(len(ids), WIDTH)}


def _sound(payload: Payload) -> bool:
    """What the specification says, said once more in plain Python."""
    ids, rows = payload["ids"].tolist(), payload["rows"].tolist()
    return (
        set(payload) == {"ids", "rows"}
        and payload["ids"].dtype == torch.int64
        and payload["rows"].dtype == torch.float32
        and payload["rows"].shape == (len(ids), WIDTH)
        and all(type(i) is int and 0 <= i < CLASSES for i in ids)
        and ids == sorted(set(ids))
        and all(math.isfinite(v) for row in rows for v in row)
    )


def _receive(data: bytes) -> Payload:
    payload = from_bytes(data)
    check_payload(payload, SPEC)
    return payload


def _spoiled_bytes(draw: random.Random) -> bytes:
    data = bytearray(to_bytes(_good(draw)))
    how = draw.randrange(7)
    if how == 0:
        return draw.randbytes(draw.randrange(200))
    if how == 1:
        return bytes(data[: draw.randrange(len(data))])
    if how == 2:
        for _ in range(draw.randrange(1, 9)):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return bytes(data)
    if how == 3:  # a header that promises another length
        return draw.choice([0, 1, 2**20, 2**40, 2**64 - 1]).to_bytes(8, "little") + bytes(data[8:])
    if how == 4:
        return bytes(data) + draw.randbytes(draw.randrange(1, 50))
    size = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + size].decode(), bytes(data[8 + size :])
    text = spoiled_text(draw, header) if how == 5 else json.dumps(_spoiled_header(draw, json.loads(header)))
    encoded = text.encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(8, "little") + encoded + body


def _spoiled_header(draw: random.Random, header: dict[str, Any]) -> dict[str, Any]:
    name = draw.choice(["ids", "rows", "__metadata__", "more"])
    entry = dict(header.get(name) or {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]})
    field = draw.choice(["dtype", "shape", "data_offsets", "extra"])
    values: dict[str, list[Any]] = {
        "dtype": ["F64", "I64", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64", "BF16", "U64", "nonsense"],
        "shape": [[2**40], [2**62, 4], [-1], [1] * 200, [], [0, 2**63], [3, 1]],
        "data_offsets": [[0, 0], [0, 2**60], [8, 4], [-8, 0], [0], [10**30, 10**31]],
        "extra": [None],
    }
    entry[field] = strange(draw) if draw.random() < 0.3 else draw.choice(values[field])
    return {**header, name: entry}


def test_bytes() -> None:
    draw, fuzz = random.Random(1), Fuzz()
    for _ in range(4000):
        data = _spoiled_bytes(draw)
        fuzz(lambda data=data: _receive(data), _sound, data)  # type: ignore[misc]
    fuzz.finish(4000, refused=0.7)


def _spoiled_tensor(draw: random.Random, tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    how = draw.randrange(8)
    if how == 0:
        return tensor.to(draw.choice([torch.float64, torch.float16, torch.int32, torch.bool, torch.complex64]))
    if how == 1:
        return tensor[..., None] if draw.random() < 0.5 else tensor.flatten()
    if how == 2 and tensor.ndim:
        return torch.cat([tensor, tensor[: draw.randrange(3)]])
    if how == 3 and tensor.numel():
        return tensor[: draw.randrange(len(tensor))] if tensor.ndim else tensor
    if how == 4:
        return torch.zeros(draw.choice([(), (0,), (1, 2, 3), (0, WIDTH)]), dtype=tensor.dtype)
    if tensor.numel():
        value = (
            draw.choice([math.nan, math.inf, -math.inf, 1e30])
            if tensor.is_floating_point()
            else draw.choice([-1, CLASSES, 2**62, -(2**63), 0] if tensor.dtype == torch.int64 else [0, 1])
        )
        tensor.view(-1)[draw.randrange(tensor.numel())] = value
    return tensor


def test_tensors_of_every_method() -> None:
    """What passes a server's check has exactly the declared names, types and shapes, and is finite."""
    draw, fuzz = random.Random(2), Fuzz()
    servers = [
        _server(name)
        for name in (
            "lg-fedavg",
            "fedgh",
            "fml",
            "fedkd",
            "fedmrl",
            "feddistill",
            "fedproto",
            "fedtgp",
            "fedgen",
            "fedl2g-f",
            "local",
        )
    ]
    for _ in range(3000):
        server = draw.choice(servers)
        payload = _valid_upload(server)
        for _ in range(draw.randrange(1, 3)):
            name = draw.choice(sorted(payload) or [""])
            how = draw.random()
            if how < 0.15:
                payload.pop(name, None)
            elif how < 0.3 or not name:
                payload[draw.choice(["", "extra", "rows ", "ids.left"])] = torch.zeros(2)
            elif name in payload:
                payload[name] = _spoiled_tensor(draw, payload[name])

        def case(server: ServerHalf[Any] = server, payload: Payload = payload) -> Payload:
            get_method(server.options.name).traits.codec.check(payload, server.expected())
            return payload

        fuzz(case, lambda p, server=server: _fits(p, server), payload)  # type: ignore[misc]
    fuzz.finish(3000, refused=0.6)


def _fits(payload: Payload, server: ServerHalf[Any]) -> bool:
    expected = server.expected()
    whole = set(payload) == set(expected) and all(
        payload[n].dtype == s.dtype
        and payload[n].ndim == len(s.shape)
        and all(a == b for a, b in zip(payload[n].shape, s.shape, strict=True) if isinstance(b, int))
        for n, s in expected.items()
    )
    finite = all(bool(torch.isfinite(t).all()) for t in payload.values() if t.is_floating_point())
    if "ids" in expected and whole:
        ids = payload["ids"].tolist()
        whole = ids == sorted(set(ids)) and all(0 <= i < CLASSES for i in ids) and len(ids) == len(payload["rows"])
    return whole and finite


def _server(method: str) -> ServerHalf[Any]:
    known = get_method(method)
    task = Task(CLASSES, image_schema(1, 16, 16), seed=0, rounds=3, auxiliary="small_cnn", feature_dim=WIDTH)
    options = {"sub_feature_dim": 2} if method == "fedmrl" else {}
    return known.server(known.options.model_validate({"name": method, **options}), task)


def _valid_upload(server: ServerHalf[Any]) -> Payload:
    return {
        name: torch.arange(CLASSES)
        if spec.below
        else torch.zeros([CLASSES if isinstance(s, str) else s for s in spec.shape], dtype=spec.dtype)
        for name, spec in server.expected().items()
    }


def test_factors() -> None:
    """FedKD's factors: whatever passes multiplies to finite tensors of the right shape, and is smaller than they."""
    draw, fuzz = random.Random(3), Fuzz()
    tensors = {"w": torch.outer(torch.arange(1.0, 9.0), torch.arange(1.0, 7.0)), "b": torch.zeros(4)}
    packed, spec = compress(tensors, 0.9), tensors_spec(tensors)
    assert set(packed) == {"w.left", "w.right", "b"}

    def sound(payload: Payload) -> bool:
        if "w" in payload:
            return payload["w"].shape == (8, 6) and bool(torch.isfinite(payload["w"]).all())
        left, right = payload["w.left"], payload["w.right"]
        product = left @ right
        return product.shape == (8, 6) and bool(torch.isfinite(product).all()) and left.numel() + right.numel() < 48

    for _ in range(1000):
        payload = dict(packed)
        for name in draw.sample(sorted(payload), draw.randrange(1, 4)):
            how = draw.random()
            if how < 0.2:
                payload[name] = payload[name] * draw.choice([1e38, -1e30, math.nan, 0.0])
            elif how < 0.4:
                rank = draw.choice([0, 1, 2, 3, 4, 50])
                payload["w.left"], payload["w.right"] = torch.ones(8, rank), torch.ones(rank, 6)
            elif how < 0.5:
                payload["w"] = tensors["w"]
            else:
                payload[name] = _spoiled_tensor(draw, payload[name])

        def case(payload: Payload = payload) -> Payload:
            check_packed(payload, spec)
            return payload

        fuzz(case, sound, payload)
    fuzz.finish(1000, refused=0.4)
