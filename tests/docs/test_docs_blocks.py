"""Every command and every piece of Python in the documentation works, or says why no test runs it."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from blocks import PAGES, ROOT, Block, blocks_of, is_slow, run_shell, write_program

from fedl2g.cli import app

MARKS = {page: [pytest.mark.slow] if is_slow(page) else [] for page in PAGES}
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RUN = [page for page in PAGES if any(block.is_run and block.language != "toml" for block in blocks_of(page))]


def blocks_with(note: str) -> list[Block]:
    return [block for block in BLOCKS if block.note.startswith(note)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the examples, as a reader has who stands in the repository."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(ROOT / "examples", folder / "examples")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("FEDL2G_DATA", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """`fedl2g` and `python` are those that run the tests."""
    programs = tmp_path / "programs"
    programs.mkdir()
    write_program(programs / "fedl2g", f'exec "{sys.executable}" -m fedl2g "$@"')
    write_program(programs / "python", f'exec "{sys.executable}" "$@"')
    return programs


@pytest.mark.parametrize("page", [pytest.param(page, marks=MARKS[page]) for page in RUN])
def test_the_blocks_of_a_page_run_in_their_order(
    page: str, folder: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = [block for block in blocks_of(page) if block.is_run]
    for block in blocks:
        first, _, rest = block.text.partition("\n")
        if block.language == "python" and first.startswith("# ") and first.endswith(".py"):
            (folder / first.removeprefix("# ")).write_text(rest)  # the page says which file it is
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        if block.language == "python":
            capsys.readouterr()
            exec(compile(block.text, str(block), "exec"), names)
            printed = capsys.readouterr().out
        elif block.language == "sh":
            printed = run_shell(block, folder, programs)
        if block.language == "python" and block.prints:
            assert printed == block.prints


@pytest.mark.parametrize("block", [block for block in blocks_with("not run: ") if block.language == "sh"], ids=str)
def test_commands_that_are_not_run_are_at_least_accepted(block: Block, tmp_path: Path) -> None:
    """The shell runs the block with programs that only write down how they were called."""
    calls = tmp_path / "calls"
    for name in ("fedl2g", "python", "docker"):
        write_program(tmp_path / name, f"printf '%s\\n' {name} \"$@\" '' >> '{calls}'")
    run_shell(block, tmp_path, tmp_path)
    for call in calls.read_text().removesuffix("\n\n").split("\n\n"):
        program, *arguments = call.splitlines()
        if program == "docker":  # what it would start in a container
            if "fedl2g" not in arguments:
                continue
            program, *arguments = arguments[arguments.index("fedl2g") :]
        if program == "fedl2g":
            parse(app, arguments)
        else:
            assert (ROOT / arguments[0]).is_file()


def parse(command: click.Command, arguments: list[str], parent: click.Context | None = None) -> None:
    """Read a command line as the command does, without carrying it out."""
    if isinstance(command, click.Group):
        context = click.Context(command, parent=parent, info_name=command.name)
        found = command.get_command(context, arguments[0])
        assert found is not None, f"no command {arguments[0]!r}"
        parse(found, arguments[1:], context)
    else:
        command.make_context(command.name, arguments, parent)


@pytest.mark.parametrize("block", blocks_with("from "), ids=str)
def test_lines_of_a_file_are_in_that_file(block: Block) -> None:
    text = (ROOT / block.note.removeprefix("from ")).read_text(encoding="utf-8")
    known = {line.strip() for line in text.splitlines()}
    assert [line for line in block.text.splitlines() if line.strip() not in known] == []


@pytest.mark.parametrize("block", blocks_with("run by "), ids=str)
def test_what_another_test_runs_is_named_there(block: Block) -> None:
    assert Path(block.page).name in (ROOT / block.note.removeprefix("run by ")).read_text(encoding="utf-8")


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_settings_files_can_be_read(block: Block) -> None:
    assert tomllib.loads(block.text)


def test_a_comment_above_a_block_is_one_of_three() -> None:
    known = ("not run: ", "run by ", "from ")
    assert [str(block) for block in BLOCKS if block.note and not block.note.startswith(known)] == []
