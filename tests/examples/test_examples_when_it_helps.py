"""docs/when-it-helps.md shows the stored results of the study."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "when-it-helps.md"


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("when_it_helps", ROOT / "benchmarks" / "when_it_helps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["when_it_helps"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_tables_of_the_stored_results(study: ModuleType) -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = text.partition(study.BEGIN)[2].partition(study.END)[0].strip()
    printed = study.tables(study.Study("small", study.RESULTS, ""))
    assert shown == printed, "run `python benchmarks/when_it_helps.py --into docs/when-it-helps.md`"


def test_the_goal_table_has_the_figures_of_the_results(study: ModuleType) -> None:
    rows = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.count("met") + line.count("missed") > 3
    ]
    for row, regime in zip(rows, study.REGIMES, strict=True):
        found = study.Study("small", study.RESULTS, "").differences(regime)
        for space, offset in (("l", 3), ("f", 6)):
            published, recommended = (found[f"fedl2g-{space}{form}"].difference for form in ("", ", recommended"))
            cells = [cell.strip() for cell in row.split("|")]
            assert cells[offset] == f"{study.points(published)}, {study.points(recommended)}", row
            no_harm = round(100 * recommended, 1) >= -0.5 or round(100 * published, 1) >= -0.5
            assert cells[offset + 1] == ("met" if no_harm else "**missed**"), row
            assert cells[offset + 2] == ("met" if recommended > published else "**missed**"), row
