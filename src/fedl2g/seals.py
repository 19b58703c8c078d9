"""Sealed files: JSON files with a digest of their content, which reveals flipped bits, mix-ups and accidental edits.

A digest does not prove who wrote a file: whoever can write it can compute a new one. Sealed files are data from others
too: their size is checked before they are read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedl2g.errors import RunError
from fedl2g.files import reason_of
from fedl2g.folder import SMALL, Folder

DIGEST = "digest"  # the key of a sealed file's digest
_RESTORE = "restore it from a copy"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def digest(content: bytes) -> str:
    """The SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def sealed(values: Mapping[str, Any], of: str = "") -> str:
    """JSON text with a digest, which also covers what the file belongs to (`of`: the id of a run)."""
    return json.dumps({**values, DIGEST: _digest_of(values, of)}, indent=2)


def write_sealed(folder: Folder, name: str, values: Mapping[str, Any], of: str = "") -> None:
    """Write a sealed file atomically; raises RunError if that fails."""
    folder.write_text(name, sealed(values, of))


def read_sealed(
    folder: Folder, name: str, of: str = "", *, limit: int = SMALL, remedy: str = _RESTORE
) -> dict[str, Any]:
    """The values of a sealed file; RunError, which ends with the `remedy`, if it cannot be read or has changed."""
    values = read_json(folder, name, limit=limit, remedy=remedy)
    check_seal(folder.path / name, values, of, remedy=remedy)
    return values


def read_json(folder: Folder, name: str, *, limit: int = SMALL, remedy: str = _RESTORE) -> dict[str, Any]:
    """The values of a JSON file, whose seal, if any, is not checked; RunError if it cannot be read."""
    path = folder.path / name
    try:
        values = json.loads(folder.text(name, limit))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read ({reason_of(error)}); {remedy}") from error
    if not isinstance(values, dict):
        raise RunError(f"{path}: not a JSON object; {remedy}")
    return values


def check_seal(path: Path, values: dict[str, Any], of: str = "", *, remedy: str = _RESTORE) -> None:
    """Remove the digest from the values of a file; RunError unless it matches them."""
    try:
        sound = values.pop(DIGEST, None) == _digest_of(values, of)
    except (ValueError, RecursionError):
        sound = False
    if not sound:
        raise damaged(path, remedy)
    require_plain_text(path, values)


def damaged(path: Path, remedy: str = _RESTORE) -> RunError:
    """The error for a file whose content is not what was written."""
    return RunError(f"{path}: damaged, it does not match its digest; {remedy}")


def require_plain_text(path: Path, values: object) -> None:
    """Refuse values with control characters: no file of ours has any, and a terminal would obey them."""
    found = [values]
    for value in found:  # grows as tables and lists are opened
        if isinstance(value, str):
            if _CONTROL.search(value):
                raise RunError(f"{path}: {value[:40]!r} holds control characters; {_RESTORE}")
        elif isinstance(value, Mapping):
            found += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            found += value


def _digest_of(values: Mapping[str, Any], of: str) -> str:
    return digest(f"{of}\n{json.dumps(values)}".encode())
