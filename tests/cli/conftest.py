"""Running the command in this process, as the console script does."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedl2g.cli import main


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """What stderr says, which must be one line of the command's own and no traceback."""
        assert "Traceback" not in self.err
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("fedl2g: ")
        return lines[0]


@pytest.fixture
def fedl2g(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Call the command in an empty folder: `fedl2g("run", "--rounds", "2")`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["fedl2g", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), captured.out, captured.err)

    return call
