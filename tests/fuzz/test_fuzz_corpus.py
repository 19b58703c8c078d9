"""What the fuzzer found once, and the examples that it starts from: accepted, or refused by a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fuzz_targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_every_finding_is_accepted_or_refused(name: str) -> None:
    for path in sorted((CORPUS / name).glob("*")):
        TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "model.json"])  # it needs a program too
def test_a_fuzzer_starts_from_inputs_that_are_accepted(name: str) -> None:
    assert all(map(TARGETS[name], TARGETS[name].examples))


def test_the_corpus_is_that_of_the_targets() -> None:
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= set(TARGETS)
