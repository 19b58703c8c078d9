"""How the server's part of a run ended: written by the app, read by the operator's `fedl2g deploy run`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedl2g import errors
from fedl2g.errors import FedL2GError
from fedl2g.files import write_text


@contextmanager
def reported(path: Path | None) -> Iterator[None]:
    """Write how the block ended to a file, if one is wanted; errors are raised again."""
    kind, message = "", ""
    try:
        yield
    except FedL2GError as error:
        kind, message = type(error).__name__, str(error)
        raise
    except BaseException as error:
        kind = "FedL2GError"
        message = f"server app: failed ({type(error).__name__}: {error}); see the SuperLink's log"
        raise
    finally:
        if path is not None:
            write_text(path, json.dumps({"kind": kind, "message": message}))


def read_outcome(path: Path) -> FedL2GError | None:
    """The error with which a run ended, None if it ended with a result; FileNotFoundError while it has not ended."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not found["message"]:
        return None
    kind = getattr(errors, found["kind"], FedL2GError)
    known = isinstance(kind, type) and issubclass(kind, FedL2GError)
    return (kind if known else FedL2GError)(found["message"])
