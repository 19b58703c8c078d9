"""What must be quick, and what must stay the same on every machine: imports without torch, random streams, plugins."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedl2g import rng
from fedl2g.engines.workers import balance
from fedl2g.errors import SettingError
from fedl2g.learning.devices import resolve_device
from fedl2g.methods.registry import get_method, method_names, register_method
from fedl2g.process import one_thread, rare_garbage_collection
from fedl2g.references import load_plugin, loaded_plugins


def test_reading_runs_and_listing_names_does_not_load_torch() -> None:
    program = """
import importlib, sys
for name in ("fedl2g", "fedl2g.errors", "fedl2g.round.record", "fedl2g.runs", "fedl2g.runs.directory",
             "fedl2g.methods.registry", "fedl2g.methods.options", "fedl2g.models.catalog"):
    importlib.import_module(name)
    heavy = sorted({"torch", "torchvision", "sklearn", "matplotlib"} & sys.modules.keys())
    assert not heavy, (name, heavy)
from fedl2g.methods.registry import method_names
from fedl2g.models.catalog import resolve_models
assert "fedl2g-f" in method_names() and resolve_models("small")
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_streams_are_a_function_of_their_names_alone() -> None:
    assert rng.derive(0, "init", 3) == 3793569830590989215
    assert rng.derive(0, "init", 3) != rng.derive(0, "init", 3, 0)
    assert rng.derive(1, "order", 2, 3) != rng.derive(1, "order", 23)
    many = {rng.derive(s, p, c, r) for s in range(3) for p in ("order", "train") for c in range(9) for r in range(9)}
    assert len(many) == 3 * 2 * 9 * 9
    assert all(0 <= seed < 2**63 for seed in many)
    first, again = (rng.torch_stream(7, "x", 1) for _ in range(2))
    assert torch.equal(torch.rand(5, generator=first), torch.rand(5, generator=again))
    one, same = (rng.numpy_stream(7, "x", 1) for _ in range(2))
    assert np.array_equal(one.random(5), same.random(5))


def test_a_seeded_block_leaves_the_global_generator_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with rng.seeded(0, "train", 1, 2):
        inside = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)

    def fail() -> None:
        with rng.seeded(0, "train", 1, 2):
            assert torch.equal(torch.rand(4), inside)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_one_thread_inside_the_block_and_as_before_after_it() -> None:
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_garbage_collection_is_rare_inside_the_block_and_as_before_after_it() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rare_garbage_collection():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


_PAGES = """
import resource, torch
from fedl2g.process import keep_freed_memory
print(keep_freed_memory())
def step():
    blocks = [torch.ones(2**20) for _ in range(16)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told")
def test_a_process_takes_the_memory_of_a_step_from_the_system_only_once() -> None:
    def pages(**environment: str) -> tuple[str, int]:
        plain = {name: value for name, value in os.environ.items() if "MALLOC" not in name and name != "GLIBC_TUNABLES"}
        done = subprocess.run(
            [sys.executable, "-c", _PAGES], env=plain | environment, capture_output=True, text=True, check=True
        )
        told, taken = done.stdout.split()
        return told, int(taken)

    told, taken = pages()
    assert told == "True"
    assert taken < 40_000  # ten steps of 64 MB are 163,840 pages
    assert pages(GLIBC_TUNABLES="")[0] == "False"  # whoever has set up the allocator is left alone


def test_devices_are_assigned_to_workers_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [resolve_device("cuda:0,cuda:1", worker).index for worker in range(3)] == [0, 1, 0]
    assert resolve_device("cpu").type == "cpu"


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_clients_are_balanced_by_cost(workers: int) -> None:
    costs = [5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0, 2.0, 2.0]
    placement = balance(costs, workers)
    assert sorted(client for clients in placement for client in clients) == list(range(9))
    loads = [sum(costs[client] for client in clients) for clients in placement]
    assert max(loads) <= max(max(costs), sum(costs) / workers + 1)
    assert all(placement)


def test_equal_costs_still_use_every_worker() -> None:
    assert [len(clients) for clients in balance([0.0] * 6, 3)] == [2, 2, 2]


PLUGIN = """
from fedl2g.methods.base import ServerHalf
from fedl2g.methods.local import LocalClient, LocalOptions
from fedl2g.methods.registry import register_method

class Mine(LocalOptions):
    "A method from outside."
    name: str = "{name}"

class MyClient(LocalClient):
    "Its client half."

register_method("{name}", options=Mine, server=ServerHalf, client=MyClient)
"""


def test_a_users_file_registers_a_method(tmp_path: Path) -> None:
    path = tmp_path / "my_startup_method.py"
    path.write_text(PLUGIN.format(name="mine-startup"))
    load_plugin(str(path))
    load_plugin(str(path))
    assert loaded_plugins().count(str(path)) == 1
    assert "mine-startup" in method_names()
    assert get_method("mine-startup").summary == "A method from outside."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("1/0", "ZeroDivisionError"),
        ("def broken(:", "SyntaxError"),
        (PLUGIN.format(name="local"), "'local' is (built in|registered already)"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_one_sentence(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken_plugin.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingError, match=message):
        load_plugin(str(path))
    assert str(path) not in loaded_plugins()


def test_a_missing_module_is_one_sentence() -> None:
    with pytest.raises(SettingError, match=r"plugin: 'no\.such\.module' cannot be imported"):
        load_plugin("no.such.module")


def test_two_methods_cannot_share_a_name() -> None:
    local = get_method("local")
    with pytest.raises(SettingError, match=r"built in|registered already"):
        register_method(
            "fedproto", options=local.options, server=local.server, client=type("Other", (local.client,), {})
        )
