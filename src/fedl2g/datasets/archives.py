"""Turns the errors of reading published files into one sentence."""

from __future__ import annotations

import csv
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedl2g.errors import DataError


@contextmanager
def archive_errors(path: Path) -> Iterator[None]:
    """Turn the readers' errors on a damaged file into a DataError."""
    try:
        yield
    except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, NotImplementedError) as error:
        raise DataError(f"{path}: cannot be read ({error}); delete it and load the dataset again") from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, csv.Error) as error:
        raise DataError(f"{path}: damaged ({error}); delete it and load the dataset again") from error
