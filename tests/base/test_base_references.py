"""Names of Python code: one parser for models, data and methods; nothing else is ever imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedl2g.errors import SettingError
from fedl2g.references import Reference, is_reference, load_reference, parse_reference, references_in, require_trust


def test_the_parts_of_a_reference() -> None:
    assert parse_reference("a.b:make") == Reference("a.b", "make")
    assert parse_reference("a.b:make#net.fc") == Reference("a.b", "make", "net.fc")
    assert parse_reference("größe:netz") == Reference("größe", "netz")


@pytest.mark.parametrize(
    "text",
    [
        "cnn4", "", ":", "a:", ":b", "a.:f", "evil1.:f", ".a:f", "a..b:f", "pkg.1b:f", "1a:f", "a:1f", "a b:f", "a:f g",
        "a:f#", "a:f#1", "a:b:c", "a/b:f", "a-b:f", "a:f\n", " a:f", "file:data.npz", "dirichlet:0.1", "C:\\data",
    ],
)  # fmt: skip
def test_what_is_no_reference_is_never_imported(text: str) -> None:
    assert not is_reference(text)
    with pytest.raises(SettingError):
        load_reference(text)


def test_references_are_found_wherever_they_stand() -> None:
    settings = {
        "method": {"name": "my.methods:mine"},
        "dataset": "my.data:load",
        "models": "cnn4, my.nets:a#head,my.nets:b",
        "aggregation": {"rule": "my.rules:krum"},
        "partition": "file:parts",
        "rounds": 3,
    }
    found = references_in(settings)
    assert found == ["my.methods:mine", "my.data:load", "my.nets:a#head", "my.nets:b", "my.rules:krum"]
    assert references_in({"models": ["my.nets:a", ["my.nets:b"]]}) == ["my.nets:a", "my.nets:b"]


def test_trust_is_one_question() -> None:
    require_trust([], "run", trust=False)
    require_trust(["a:b"], "run", trust=True)
    with pytest.raises(SettingError, match=r"run: names code to import \(a:b\).*--trust"):
        require_trust(["a:b"], "run", trust=False)


def test_modules_of_the_current_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_this_folder.py").write_text("value = 7\n")
    monkeypatch.chdir(tmp_path)
    assert load_reference("module_of_this_folder:value") == 7
    with pytest.raises(SettingError, match="has no 'other'"):
        load_reference("module_of_this_folder:other")
    (tmp_path / "module_that_fails.py").write_text("1 / 0\n")
    with pytest.raises(SettingError, match="cannot be imported \\(ZeroDivisionError"):
        load_reference("module_that_fails:x")


@pytest.mark.parametrize(
    "name", ["keep", "Counter", "SettingError", "__getattr__", "__setattr__", "__builtins__", "_kept"]
)
def test_of_a_session_only_what_was_kept_can_be_named(name: str) -> None:
    with pytest.raises(SettingError, match="was defined in another Python session"):
        load_reference(f"fedl2g.session:{name}")
