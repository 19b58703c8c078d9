"""Dense uploads: a row for every class, so that an upload does not reveal which classes the client has."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedl2g.experiment.policies import Privacy
from fedl2g.payload import PRESENT, Payload, Specification, TensorSpec
from fedl2g.uploads.stage import Stage, Upload


@dataclass(frozen=True)
class Dense:
    """The dense form of class vectors; `counted` adds an entry that marks which classes the client has."""

    classes: int
    counted: bool

    @classmethod
    def of(cls, privacy: Privacy, classes: int) -> Dense | None:
        """The dense form that the settings select; None if only the rows that a client has are sent."""
        if not (privacy.dense_uploads or privacy.on):
            return None
        # Under the guarantee the entry is clipped and noised like all others, and sent only if requested.
        return cls(classes, privacy.denominator == "counted" or not privacy.on)

    def pack(self, payload: Payload) -> Payload:
        """Expand class vectors to a row for every class, zeros where there is none; other payloads are unchanged."""
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
        """The class vectors marked as present; other payloads are unchanged."""
        if PRESENT not in payload:
            return payload
        there = payload[PRESENT] > 0.5
        return {"ids": payload["ids"][there], "rows": payload["rows"][there]}

    def specification(self, expected: Specification) -> Specification:
        """The dense form of a method's specification."""
        if set(expected) != {"ids", "rows"}:
            return expected
        ids, rows = expected["ids"], expected["rows"]
        dense = {
            "ids": TensorSpec((self.classes,), ids.dtype, ids.below),
            "rows": TensorSpec((self.classes, rows.shape[1]), rows.dtype),
        }
        return {**dense, PRESENT: TensorSpec((self.classes,), rows.dtype)} if self.counted else dense


class Densify(Stage):
    """Converts class vectors to their dense form."""

    def __init__(self, dense: Dense) -> None:
        self.dense = dense

    def apply(self, upload: Upload) -> Upload:
        return replace(upload, payload=self.dense.pack(upload.payload))
