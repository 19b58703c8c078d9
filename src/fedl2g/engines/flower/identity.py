"""The short answers of a node: which client it is, and why it refuses a request. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from fedl2g.engines.flower import strict
from fedl2g.errors import FedL2GError, PayloadError

_MODEL_LIMIT = 256  # characters of the name of a network
AWAKE = "query.awake"
"""The kind of a message that only keeps a node awake; its answer is not read."""
_REASON_LIMIT = 5_000  # characters of a refusal; the last ones are kept, because they name the error


class Refused(FedL2GError):
    """A node refused a request or failed to serve it; the message comes from the node."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def pack_refusal(error: FedL2GError) -> RecordDict:
    """Convert the error that kept a node from serving a request to Flower records."""
    return RecordDict({"refusal": ConfigRecord({"kind": type(error).__name__, "message": str(error)[-_REASON_LIMIT:]})})


def raise_refusal(records: RecordDict) -> None:
    """Raise Refused if an answer is a refusal, PayloadError if it is a malformed one."""
    if "refusal" in records:
        strict.only(records, "refusal")
        refusal = strict.record(records, "refusal", ConfigRecord)
        strict.keys(refusal, "refusal", ("kind", "message"))
        message = refusal["message"]
        if type(message) is not str or not message.strip():
            raise PayloadError("refusal: gives no reason; expected a message")
        lines = map(strict.printable, message[-_REASON_LIMIT:].splitlines())
        raise Refused(strict.text(refusal["kind"], "refusal: kind"), "\n".join(lines))


@dataclass(frozen=True)
class Disclosed:
    """What a node discloses about its client for the coordinator's records."""

    model: str | None = None
    samples: bool = False  # whether the records may say how many samples it has


def pack_identity(client: int, disclosed: Disclosed | None = None) -> RecordDict:
    """Convert the number of a node's client, and what it discloses about itself, to Flower records."""
    about: dict[str, int | str | bool] = {"client": client}
    if disclosed is not None and disclosed.model is not None:
        about["model"] = disclosed.model
    if disclosed is not None and disclosed.samples:
        about["samples"] = True
    return RecordDict({"identity": ConfigRecord(about)})  # type: ignore[arg-type]


def unpack_identity(records: RecordDict, clients: int) -> int:
    """Read which client lives on a node; raises PayloadError for an unknown number."""
    raise_refusal(records)
    strict.only(records, "identity")
    identity = strict.record(records, "identity", ConfigRecord)
    strict.keys(identity, "identity", ("client",), ("model", "samples"))
    client = identity["client"]
    if type(client) is not int or not 0 <= client < clients:
        raise PayloadError(f"it claims to be client {strict.shown(client)}; expected a number from 0 to {clients - 1}")
    return client


def unpack_disclosed(records: RecordDict) -> Disclosed:
    """Read what a node discloses about its client; raises PayloadError if it is malformed."""
    identity = strict.record(records, "identity", ConfigRecord)
    model, samples = identity.get("model"), identity.get("samples", False)
    if type(samples) is not bool:
        raise PayloadError(f"identity: samples: {strict.shown(samples)} is not allowed; expected true or false")
    return Disclosed(None if model is None else strict.text(model, "identity: model", _MODEL_LIMIT), samples)
