"""Flower's records as a header and a payload, for the connection to a process of this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedl2g.engines.wire import Header
from fedl2g.payload import Payload


def split_records(records: RecordDict) -> tuple[Header, Payload]:
    """Numbers, texts and the forms of arrays; the bytes of the arrays."""
    header: Header = {}
    payload: Payload = {}
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            forms = {key: [array.dtype, list(array.shape), array.stype] for key, array in record.items()}
            header[name] = ["arrays", forms]
            for key, array in record.items():
                payload[f"{name}/{key}"] = torch.from_numpy(np.frombuffer(array.data, np.uint8).copy())
        else:
            header[name] = ["metrics" if isinstance(record, MetricRecord) else "config", dict(record)]
    return header, payload


def join_records(header: Header, payload: Payload) -> RecordDict:
    """The records that `split_records` was given."""
    found: dict[str, Any] = {}
    for name, (kind, values) in header.items():
        if kind == "arrays":
            found[name] = ArrayRecord(
                {
                    key: Array(dtype, tuple(shape), stype, payload[f"{name}/{key}"].numpy().tobytes())
                    for key, (dtype, shape, stype) in values.items()
                }
            )
        else:
            found[name] = MetricRecord(values) if kind == "metrics" else ConfigRecord(values)
    return RecordDict(found)
