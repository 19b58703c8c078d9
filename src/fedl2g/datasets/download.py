"""Downloads of published files: resumable, verified, and atomic under their final name."""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from fedl2g.datasets.cache import Progress
from fedl2g.errors import DataError

ATTEMPTS = 4
PAUSE_SECONDS = 2.0
TIMEOUT_SECONDS = 60.0
CHUNK = 1 << 20
_BROKEN = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)
"""Errors of a bad connection, which are retried; other OSErrors come from the disk."""


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its address and, if known, its MD5."""

    address: str
    md5: str | None = None
    saved_as: str | None = None
    """Its name in the downloads folder where the published one says too little."""

    @property
    def name(self) -> str:
        """Its name in the downloads folder."""
        return self.saved_as or self.address.rsplit("/", 1)[-1]


def fetch(file: RemoteFile, folder: Path, progress: Progress | None = None) -> Path:
    """The path of the file in the downloads folder; downloads it if necessary and verifies it in any case."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file.name
    with FileLock(folder / f"{file.name}.lock"):
        if path.exists():
            if (found := _wrong_md5(path, file, progress)) is not None:
                raise DataError(
                    f"{path}: is not the published file (its MD5 is {found}, not {file.md5}); delete it to download it "
                    f"again from {file.address}"
                )
            return path
        part = folder / f"{file.name}.part"
        _download(file, part, progress)
        if (found := _wrong_md5(part, file, progress)) is not None:
            part.unlink()
            raise DataError(
                f"{file.address}: the download is not the published {file.name} (its MD5 is {found}, not {file.md5}); "
                f"try again, or put the file into {folder} by hand"
            )
        os.replace(part, path)
    return path


def _download(file: RemoteFile, part: Path, progress: Progress | None) -> None:
    """Complete `part`, resuming from what an earlier attempt or run left there."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _continue_download(file, part, progress)
            return
        except _BROKEN as error:
            refused = isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500 and error.code != 416
            if refused or attempt == ATTEMPTS:
                raise DataError(
                    f"{file.address}: {file.name} cannot be downloaded ({error}); check the connection and try again "
                    f"(the download resumes where it stopped), or put the file into {part.parent} by hand"
                ) from error
            time.sleep(PAUSE_SECONDS * attempt)


def _continue_download(file: RemoteFile, part: Path, progress: Progress | None) -> None:
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fedl2g"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(file.address, headers=headers), timeout=TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        if error.code == 416:  # range not satisfiable: `part` is complete, or belongs to another file
            if error.headers.get("Content-Range") == f"bytes */{done}":
                return
            part.unlink(missing_ok=True)
        raise
    with response:
        if response.status != 206 or not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            done = 0  # the server sends the file from the beginning
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with open(part, "ab" if done else "wb") as out:
            while chunk := response.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(f"Downloading {file.name}", done, total)
            out.flush()
            os.fsync(out.fileno())
    if total is not None and done != total:
        raise ConnectionError(f"the connection broke off after {done} of {total} bytes")


def _wrong_md5(path: Path, file: RemoteFile, progress: Progress | None) -> str | None:
    """The MD5 of a file if it is not the expected one, else None."""
    if file.md5 is None:
        return None
    digest, done, total = hashlib.md5(usedforsecurity=False), 0, path.stat().st_size
    with open(path, "rb") as data:
        while chunk := data.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"Checking {file.name}", done, total)
    return None if digest.hexdigest() == file.md5 else digest.hexdigest()
