"""The short answers of a node: which client it is, and why it refuses a request. Imports no torch."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from fedl2g.engines.flower import strict
from fedl2g.errors import FedL2GError, PayloadError

_REASON_LIMIT = 5_000  # characters of a refusal that are kept: the last ones, which name the error


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
        strict.keys(refusal, "the refusal", ("kind", "message"))
        message = refusal["message"]
        if type(message) is not str or not message.strip():
            raise PayloadError("the refusal: it gives no reason; expected a message")
        lines = map(strict.printable, message[-_REASON_LIMIT:].splitlines())
        raise Refused(strict.text(refusal["kind"], "the refusal: kind"), "\n".join(lines))


def pack_identity(client: int) -> RecordDict:
    """Convert the number of a node's client to Flower records."""
    return RecordDict({"identity": ConfigRecord({"client": client})})


def unpack_identity(records: RecordDict, clients: int) -> int:
    """Read which client lives on a node; raises PayloadError for an unknown number."""
    raise_refusal(records)
    strict.only(records, "identity")
    identity = strict.record(records, "identity", ConfigRecord)
    strict.keys(identity, "the identity", ("client",))
    client = identity["client"]
    if type(client) is not int or not 0 <= client < clients:
        raise PayloadError(f"it claims to be client {strict.shown(client)}; expected a number from 0 to {clients - 1}")
    return client
