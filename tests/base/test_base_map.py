"""The map of the package is enforced: imports point one way, and one that does not is found wherever it stands."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedl2g.federation import Federation

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with its contract, to be spoilt."""
    folder = tmp_path_factory.mktemp("map")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint(folder: Path) -> tuple[int, str]:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_imports_point_one_way() -> None:
    code, output = lint(ROOT)
    assert code == 0, output


@pytest.mark.parametrize(
    ("module", "planted", "told"),
    [
        ("datasets/dataset.py", "import fedl2g.report.page", "fedl2g.datasets is not allowed to import fedl2g.report"),
        (
            "privacy/accounting.py",
            "def _lazy():\n    from fedl2g.leakage.probe import probe",
            "fedl2g.privacy is not allowed to import fedl2g.leakage",
        ),
        (
            "report/page.py",
            "if TYPE_CHECKING:\n    from fedl2g.paper.study import Study",
            "fedl2g.report is not allowed to import fedl2g.paper",
        ),
        (
            "runs/result.py",
            "def _lazy():\n    import fedl2g.runs.runner",
            "No cycles are allowed in fedl2g.runs",
        ),
    ],
)
def test_an_import_that_points_up_is_found(module: str, planted: str, told: str, copy: Path) -> None:
    path = copy / "src" / "fedl2g" / module
    before = path.read_text(encoding="utf-8")
    try:
        path.write_text(f"{before}\n\n{planted}\n", encoding="utf-8")
        code, output = lint(copy)
    finally:
        path.write_text(before, encoding="utf-8")
    assert code != 0
    assert told in " ".join(output.split())


def test_a_new_room_must_find_its_place(copy: Path) -> None:
    room = copy / "src" / "fedl2g" / "attic"
    room.mkdir()
    try:
        (room / "__init__.py").write_text('"""Not on the map."""\n')
        code, output = lint(copy)
    finally:
        shutil.rmtree(room)
    assert code != 0
    assert "attic" in output


def test_contributing_shows_every_room_in_the_order_of_the_contract() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The map")[2].partition("## ")[0]
    lines = [set(re.findall(r"`(\w+)(?:/|\.py)?`", line.split("|")[1])) for line in text.splitlines() if "| `" in line]
    rooms = {path.stem for path in (ROOT / "src" / "fedl2g").iterdir() if path.suffix in ("", ".py")}
    assert set.union(*lines) == {room for room in rooms if not room.startswith("__")}
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [set(layer.split(" | ")) for layer in next(one["layers"] for one in contract if one["id"] == "layers")]
    level = {room: -number for number, layer in enumerate(layers) for room in layer}
    for above, below in itertools.pairwise(lines):
        assert max(level[room] for room in above) < min(level[room] for room in below)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/explanation.md", "docs/how-to-extend.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:src/fedl2g/)?\w+(?:/\w+)*(?:/|\.py))`", text)) - {"my_method.py", "my_file.py"}
    assert len(named) > 2
    places = (ROOT, ROOT / "src" / "fedl2g")
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []


def test_the_round_that_is_explained_is_the_one_that_runs() -> None:
    text = (ROOT / "docs" / "explanation.md").read_text(encoding="utf-8")
    ((file, shown),) = re.findall(r"<!-- from (\S+) -->\n```python\n(.*?)```", text, flags=re.S)
    source = [line.strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
    places = [source.index(line.strip()) for line in shown.splitlines()]
    assert len(places) > 5
    assert places == sorted(places)
    assert all(hasattr(Federation, name) for name in re.findall(r"`Federation\.(\w+)`", text))
