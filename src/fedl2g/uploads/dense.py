"""Dense uploads: a class vector for every class, so that what is sent does not say which classes are there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedl2g.experiment.policies import Privacy
from fedl2g.payload import PRESENT, Payload, Specification, TensorSpec
from fedl2g.uploads.stage import Stage, Upload


@dataclass(frozen=True)
class Dense:
    """How class vectors are sent densely: with or without an entry that says which classes the client has."""

    classes: int
    counted: bool

    @classmethod
    def of(cls, privacy: Privacy, classes: int) -> Dense | None:
        """The form that the settings ask for; None where only the rows that a client has are sent."""
        if not (privacy.dense_uploads or privacy.on):
            return None
        # Under the guarantee the entry is clipped and noised like all others, and sent only if it is asked for.
        return cls(classes, privacy.denominator == "counted" or not privacy.on)

    def pack(self, payload: Payload) -> Payload:
        """Class vectors with a row for every class, zeros where the client has none; other payloads as they are."""
        if "ids" not in payload:
            return payload
        ids, rows = payload["ids"], payload["rows"]
        dense = rows.new_zeros(self.classes, rows.shape[1])
        dense[ids] = rows
        packed = {"ids": torch.arange(self.classes), "rows": dense}
        if self.counted:
            packed[PRESENT] = rows.new_zeros(self.classes)
            packed[PRESENT][ids] = 1
        return packed

    def unpack(self, payload: Payload) -> Payload:
        """The class vectors that the client says it has; other payloads as they are."""
        if PRESENT not in payload:
            return payload
        there = payload[PRESENT] > 0.5
        return {"ids": payload["ids"][there], "rows": payload["rows"][there]}

    def specification(self, expected: Specification) -> Specification:
        """What arrives where a method's upload is expected to look like this."""
        if set(expected) != {"ids", "rows"}:
            return expected
        ids, rows = expected["ids"], expected["rows"]
        dense = {
            "ids": TensorSpec((self.classes,), ids.dtype, ids.below),
            "rows": TensorSpec((self.classes, rows.shape[1]), rows.dtype),
        }
        return {**dense, PRESENT: TensorSpec((self.classes,), rows.dtype)} if self.counted else dense


class Densify(Stage):
    """Sends class vectors densely."""

    def __init__(self, dense: Dense) -> None:
        self.dense = dense

    def apply(self, upload: Upload) -> Upload:
        return replace(upload, payload=self.dense.pack(upload.payload))
