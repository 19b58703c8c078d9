"""Every command that reads a run directory, called in this process, with all that it says and writes."""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fedl2g.cli import app
from fedl2g.display import OneLine
from fedl2g.errors import FedL2GError

_TIMES = re.compile(r"made [-\d]+ [:\d]+ ?\w*|\d+(\.\d+)? s\b")


@dataclass
class Said:
    """What a command said and wrote: the exit code, both streams, the files of its `out` folder."""

    code: int
    out: str
    err: str
    files: dict[str, str] = field(default_factory=dict)

    def same(self, other: Said) -> bool:
        return (self.code, self.out, self.files) == (other.code, other.out, other.files)


def drawn_as_text(patch: pytest.MonkeyPatch) -> None:
    """Figures are written as what they are drawn from: all of it is compared, and a picture takes long."""
    patch.setattr("altair.utils.schemapi.DEBUG_MODE", False)  # else every part is checked against the schema
    patch.setattr(
        "fedl2g.report.charts.render._rendered", lambda spec, suffix: json.dumps(spec, sort_keys=True).encode()
    )


def ask(arguments: Sequence[str], folder: Path) -> Said:
    """Call the command in a folder, as the console script does but for signals; its files go to `folder`/out."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    out, err = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(err)
    handler.setFormatter(OneLine("fedl2g: %(message)s"))
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("fedl2g")
    logger.addHandler(handler)
    try:
        with chdir(folder), redirect_stdout(out), redirect_stderr(err):
            code = app(list(arguments), prog_name="fedl2g", standalone_mode=False) or 0
    except FedL2GError as error:
        code = error.exit_code
        err.write(f"fedl2g: {error}\n")
    finally:
        logger.removeHandler(handler)
    written = sorted((folder / "out").rglob("*")) if (folder / "out").exists() else []
    files = {path.name: _plain(path.read_text(errors="replace")) for path in written if path.is_file()}
    return Said(code, _plain(out.getvalue()), err.getvalue(), files)


def _plain(text: str) -> str:
    return _TIMES.sub("", text)


READING: dict[str, Callable[[str], tuple[str, ...]]] = {
    "list": lambda run: ("list", "."),
    "list --json": lambda run: ("list", ".", "--json"),
    "show": lambda run: ("show", run),
    "show --json": lambda run: ("show", run, "--json"),
    "report": lambda run: ("report", run, "--no-tsne", "--quiet", "--out", "out/report.html"),
    "plot": lambda run: ("plot", run, "--out", "out/figure.svg"),
    "watch": lambda run: ("watch", run, "--once", "out/page.html", "--quiet"),
}
"""The commands that only read, by what they are called; `run` is a directory."""
