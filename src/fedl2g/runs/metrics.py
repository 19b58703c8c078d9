"""The metrics of a run: a line of JSON for each round, each with a digest of its own; lines are only ever added.

A process that is killed leaves part of a line without its end, which readers leave out and the next process removes.
Anything else that does not match its digest is damage.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from fedl2g.errors import RunError
from fedl2g.files import reason_of
from fedl2g.folder import GIB, KIB, MIB, Folder
from fedl2g.round.record import RoundRecord
from fedl2g.runs.layout import METRICS
from fedl2g.seals import digest

_LIMIT = 4 * GIB
_DIGEST = b', "digest": "'
_DIGITS = 16  # of a line's digest, which protects against faults, not against forgery
_log = logging.getLogger(__name__)


@dataclass
class Found:
    """What is in the metrics: the last record of each round, and what is wrong with other lines."""

    records: dict[int, RoundRecord] = field(default_factory=dict)
    damage: str = ""  # the first damaged line
    torn: bool = False  # the last line has no end: its process was killed

    @property
    def history(self) -> list[RoundRecord]:
        """The records by round."""
        return [self.records[number] for number in sorted(self.records)]


@dataclass(frozen=True)
class Metrics:
    """The metrics in the folder of a run; `run` is the run's id, which every digest covers."""

    folder: Folder
    run: str
    clients: int
    go_on: str = "start it again"  # how the run is continued, for messages
    every_round: bool = True

    @property
    def longest(self) -> int:
        """The bytes of the longest line that is written or read: a record has some numbers for every client."""
        return min(64 * KIB + 512 * self.clients, 64 * MIB)

    def read(self) -> Found:
        """Read all lines; a file that is missing has none."""
        found = Found()
        try:
            with self.folder.opened(METRICS, _LIMIT) as file:
                for number, line in enumerate(self._lines(file), 1):
                    self._read_line(line, number, found)
        except FileNotFoundError:
            return found
        except OSError as error:
            raise RunError(f"{self._path}: cannot be read ({reason_of(error)}); restore it from a copy") from error
        numbers = sorted(found.records)
        if self.every_round and not found.damage and numbers != list(range(len(numbers))):
            missing = next(number for number in range(len(numbers)) if number not in found.records)
            found.damage = f"round {missing} is missing"
        return found

    def latest(self, read: int = 0) -> tuple[RoundRecord | None, int]:
        """The last record beyond the first `read` bytes (None: no new one), and the bytes read by now.

        For followers of a run in another process: cheap, and never fails.
        """
        try:
            with self.folder.opened(METRICS, _LIMIT) as file:
                size = os.fstat(file.fileno()).st_size
                start = max(read if read <= size else 0, size - 2 * self.longest)
                file.seek(start)
                whole = file.read(size - start).rpartition(b"\n")[0]
        except (OSError, RunError):  # not started yet
            return None, read
        record = self._record(whole.rpartition(b"\n")[2])
        return (record, start + len(whole) + 1) if record is not None else (None, read)

    def append(self, record: RoundRecord) -> None:
        """Add the line of a round; if that fails, the file is unchanged."""
        line = self._line(record)
        with self._writing(), self.folder.appending(METRICS) as file:
            end = self._sound_end(file)
            try:
                file.write(line)
                file.flush()
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), end)
                raise

    def _sound_end(self, file: BinaryIO) -> int:
        """Where the next line begins, once the part of a line that a killed process left has been removed."""
        size = file.seek(0, os.SEEK_END)
        start = max(size - self.longest, 0)
        file.seek(start)
        lines, newline, torn = file.read(size - start).rpartition(b"\n")
        end = start + len(lines) + len(newline)
        if torn and self._record(torn) is not None:
            file.write(b"\n")
            return size + 1
        if torn:
            os.ftruncate(file.fileno(), end)
        file.seek(0, os.SEEK_END)
        return end

    def restore(self, history: Sequence[RoundRecord]) -> None:
        """Make the file hold these rounds, which come from a checkpoint; intact lines are not rewritten."""
        found = self.read()
        missing = {record.round: record for record in history if found.records.get(record.round) != record}
        if found.damage:
            _log.warning("%s: damaged (%s); its rounds are written anew", self._path, found.damage)
        if not found.damage and not found.torn:
            for record in missing.values():
                self.append(record)
            return
        whole = found.records | missing
        ends = next((number for number in range(len(whole)) if number not in whole), len(whole))
        with self._writing(), self.folder.replacing(METRICS) as partial:
            partial.write_bytes(b"".join(self._line(whole[number]) for number in range(ends)))

    @property
    def _path(self) -> Path:
        return self.folder.path / METRICS

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self._path}: cannot be written ({error.strerror}); the last checkpoint is intact; make room, then "
                f"{self.go_on}"
            ) from error

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        while line := file.readline(self.longest + 1):
            if len(line) > self.longest:
                raise RunError(
                    f"{self._path}: a line is too large; expected at most {self.longest // KIB} KiB for "
                    f"the run's {self.clients} clients; restore it from a copy"
                )
            yield line

    def _read_line(self, line: bytes, number: int, found: Found) -> None:
        whole = line.endswith(b"\n")
        record = self._record(line.removesuffix(b"\n"))
        found.torn |= not whole
        if record is not None:
            found.records[record.round] = record
        elif whole or self._sealed(line[:-1]):  # else part of a line
            found.damage = found.damage or f"line {number} does not match its digest"

    def _line(self, record: RoundRecord) -> bytes:
        body = json.dumps(record.to_dict()).encode()
        line = body[:-1] + _DIGEST + self._digest(body).encode() + b'"}\n'
        if len(line) > self.longest:
            raise RunError(
                f"{self._path}: the record of round {record.round} has {len(line) // KIB} KiB; expected "
                f"at most {self.longest // KIB} KiB; evaluate fewer clients (evaluate_clients)"
            )
        return line

    def _record(self, line: bytes) -> RoundRecord | None:
        """The record of a line; None if it does not match its digest."""
        body = self._sealed(line)
        try:
            return None if body is None else RoundRecord.from_dict(json.loads(body))
        except (ValueError, RecursionError):
            return None

    def _sealed(self, line: bytes) -> bytes | None:
        """The record in a line, as JSON; None if the line does not match its digest."""
        body, _, end = line.rpartition(_DIGEST)
        body += b"}"
        return body if end == self._digest(body).encode() + b'"}' else None

    def _digest(self, body: bytes) -> str:
        return digest(f"{self.run}\n".encode() + body)[:_DIGITS]
