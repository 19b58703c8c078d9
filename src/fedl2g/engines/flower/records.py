"""Flower's records as bytes, and as one record. Imports no torch.

Flower sends every record and every array in separate HTTP requests, at every hop. A message in one record takes less
than half of them.
"""

from __future__ import annotations

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedl2g.errors import PayloadError

_ENVELOPE, _CONTENT = "envelope", "content"
_LARGEST = 2**20  # bytes; Flower cuts larger arrays into pieces, which it does not do with a record
_LENGTH = 8  # bytes of the header's length


def pack_records(records: RecordDict) -> bytes:
    """Serialise records of numbers, texts and arrays; PayloadError for other values, which no message of ours holds."""
    header: dict[str, Any] = {}
    arrays: list[bytes] = []
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            forms = {key: [a.dtype, list(a.shape), a.stype, len(a.data)] for key, a in record.items()}
            header[name] = ["arrays", forms]
            arrays += [array.data for array in record.values()]
        else:
            header[name] = ["metrics" if isinstance(record, MetricRecord) else "config", dict(record)]
    try:
        text = json.dumps(header).encode()
    except (TypeError, ValueError) as error:
        raise PayloadError("message: holds bytes; expected numbers, texts and arrays") from error
    return b"".join([len(text).to_bytes(_LENGTH, "big"), text, *arrays])


def unpack_records(data: bytes) -> RecordDict:
    """Inverse of `pack_records`; PayloadError for anything malformed."""
    try:
        place = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
        found: dict[str, Any] = {}
        for name, (kind, values) in json.loads(data[_LENGTH:place]).items():
            if kind == "arrays":
                arrays = {}
                for key, (dtype, shape, stype, length) in values.items():
                    arrays[key] = Array(dtype, tuple(shape), stype, data[place : place + length])
                    place += length
                found[name] = ArrayRecord(arrays)
            else:
                found[name] = {"metrics": MetricRecord, "config": ConfigRecord}[kind](values)
        if place != len(data):
            raise ValueError("its length differs from the declared one")
        return RecordDict(found)
    except Exception as error:  # JSON and Flower's records raise many kinds of errors
        raise PayloadError(f"message: its envelope cannot be read ({type(error).__name__})") from error


def wrap(records: RecordDict) -> RecordDict:
    """The records as one record, unless they are large."""
    data = pack_records(records)
    return RecordDict({_ENVELOPE: ConfigRecord({_CONTENT: data})}) if len(data) <= _LARGEST else records


def unwrap(records: RecordDict) -> RecordDict:
    """Inverse of `wrap`; PayloadError for anything malformed."""
    if _ENVELOPE not in records:
        return records
    record = records[_ENVELOPE]
    data = record.get(_CONTENT) if isinstance(record, ConfigRecord) and len(record) == len(records) == 1 else None
    if type(data) is not bytes or len(data) > _LARGEST:
        raise PayloadError("message: its envelope is not valid; expected one record of bytes, at most 1 MB")
    return unpack_records(data)
