"""A node is the client whose key it has: false claims are refused, logged and recorded; nodes in this process."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from fake_engine import Open, broadcast, clients, federation, train, void
from fake_grid import FakeClock, FakeNode, FakeSimulation, honest, register, stranger, tiny_setup

from fedl2g.deploy.keys import write_key_pair
from fedl2g.deploy.registered import bind_key, read_keys
from fedl2g.deploy.scaffold import Plan, scaffold
from fedl2g.engines.base import Rejected
from fedl2g.engines.flower.simulation import SimulationEngine
from fedl2g.errors import SettingError
from fedl2g.schema import image_schema

SITES = ("north", "south", "east")
CLAIM = "it claims to be client 0, but has the key of client 1"


def bind(engine: SimulationEngine, fake: FakeSimulation) -> None:
    """Bind the key of node 100 + n to client n."""
    for number, node in fake.grid.nodes.items():
        node.public_key = f"key {number}".encode()
    engine.nodes.keys = {f"key {100 + client}".encode(): client for client in range(3)}


def test_a_node_that_answers_for_another_client_is_refused_logged_and_counted(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    setup = tiny_setup(rounds=1)  # no deadline: nobody waits for a refused node
    engine, fake = opened(setup)
    bind(engine, fake)
    # It is asked first, and would be taken for client 0.
    fake.grid.nodes[101].handle = stranger(0)
    fake.grid.nodes = {101: fake.grid.nodes[101], 100: fake.grid.nodes[100], 102: fake.grid.nodes[102]}
    loop = federation(setup, engine)
    with caplog.at_level(logging.WARNING):
        loop.run()
    assert loop.history[1].refused == {1: f"its node is refused: {CLAIM}"}
    assert loop.history[1].client_losses.keys() == {0, 2}
    assert loop.history[0].accuracy is not None
    assert loop.history[0].accuracy.clients.keys() == {0, 2}
    assert f"node 101 is refused: {CLAIM}" in caplog.messages
    assert fake.grid.nodes[101].received == ["query"]
    assert engine.nodes[0] == 100


def test_a_run_that_needs_the_refused_site_waits_for_it(opened: Open, clock: FakeClock) -> None:
    setup = tiny_setup(replies={"minimum": 3, "below_minimum": "wait"}, rounds=1)
    engine, fake = opened(setup)
    bind(engine, fake)
    fake.grid.nodes[101].handle = lambda request: (stranger(0) if clock.now < 9.0 else honest(fake.root, 1))(request)
    fake.grid.nodes[101].started = "once"
    answers = engine.train(1, [0, 1, 2], broadcast(setup), void)
    assert sorted(next(answers).client for _ in range(2)) == [0, 2]
    clock.now = 10.0
    fake.grid.nodes[101].started = "again"
    assert [answer.client for answer in answers] == [1]


def test_without_bound_keys_the_first_claim_would_be_believed(opened: Open) -> None:
    """What the binding prevents: the test above fails without it."""
    setup = tiny_setup(replies={"deadline_seconds": 5.0}, rounds=1)
    engine, fake = opened(setup)
    fake.grid.nodes[101].handle = stranger(0)
    fake.grid.nodes = {101: fake.grid.nodes[101], 100: fake.grid.nodes[100], 102: fake.grid.nodes[102]}
    assert clients(train(engine)) == ([2], [0, 1])
    assert engine.nodes[0] == 101


def test_a_node_whose_key_belongs_to_nobody_is_refused(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    engine, fake = opened(tiny_setup())
    bind(engine, fake)
    fake.grid.nodes = {7: FakeNode(stranger(0), public_key=b"another"), **fake.grid.nodes}
    with caplog.at_level(logging.WARNING):
        assert clients(train(engine)) == ([0, 1, 2], [])
    assert engine.nodes.rejected == {7}
    assert "node 7 is refused: it claims to be client 0, but its key belongs to no site; register it" in caplog.messages


def test_a_site_that_corrects_its_file_and_restarts_takes_part(opened: Open) -> None:
    engine, fake = opened(tiny_setup(rounds=3))
    bind(engine, fake)
    fake.grid.nodes[101].handle = stranger(0)
    refused = [answer for answer in train(engine) if isinstance(answer, Rejected)]
    assert [answer.client for answer in refused] == [1]
    fake.grid.nodes[101].handle = honest(fake.root, 1)
    fake.grid.nodes[101].started = "again"
    fake.grid.nodes[100].seconds = 1.0  # long enough to notice
    assert clients(train(engine, 2)) == ([0, 2], [1])
    assert clients(train(engine, 3)) == ([0, 1, 2], [])
    assert engine.nodes.false_claims == {}


@pytest.fixture
def coordinator(tmp_path: Path) -> Path:
    scaffold(Plan(tmp_path / "fed", SITES, ("a", "b"), image_schema(1, 8, 8)))
    return tmp_path / "fed" / "coordinator"


def test_keys_are_bound_to_the_numbers_of_their_sites(coordinator: Path, tmp_path: Path) -> None:
    keys = register(coordinator, "east", "north")
    assert read_keys(coordinator / "keys.toml", SITES) == {keys[0]: 2, keys[1]: 0}
    before = (coordinator / "keys.toml").read_bytes()
    bind_key(coordinator / "east_key.pub", "east", coordinator)  # again: nothing changes
    assert (coordinator / "keys.toml").read_bytes() == before


def test_a_key_is_bound_once(coordinator: Path, tmp_path: Path) -> None:
    register(coordinator, "north")
    with pytest.raises(SettingError, match="is already the key of north; each site needs its own key"):
        bind_key(coordinator / "north_key.pub", "south", coordinator)
    another = write_key_pair(tmp_path / "another")
    with pytest.raises(SettingError, match="north: has another key"):
        bind_key(another, "north", coordinator)
    with pytest.raises(SettingError, match="nort: not a site of this federation; did you mean 'north'"):
        bind_key(another, "nort", coordinator)
    line = (coordinator / "keys.toml").read_text().splitlines()[1]
    (coordinator / "keys.toml").write_text(f"{line}\n{line.replace('north', 'south')}\n")
    with pytest.raises(SettingError, match="two sites have the same key"):
        read_keys(coordinator / "keys.toml", SITES)


@pytest.mark.parametrize("text", ["", "garbage", "ecdsa-sha2-nistp384 AAAA", "\x1b[2J"])
def test_a_file_that_is_not_a_key_is_refused(text: str, coordinator: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(text)
    with pytest.raises(SettingError, match="not a public key"):
        bind_key(tmp_path / "key.pub", "north", coordinator)
    assert not (coordinator / "keys.toml").exists()


def test_keys_of_another_kind_and_missing_registers_are_refused(coordinator: Path, tmp_path: Path) -> None:
    public = rsa.generate_private_key(65537, 2048).public_key()
    data = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (tmp_path / "key.pub").write_bytes(data)
    with pytest.raises(SettingError, match="not an elliptic-curve key"):
        bind_key(tmp_path / "key.pub", "north", coordinator)
    with pytest.raises(SettingError, match="no site is registered"):
        read_keys(coordinator / "keys.toml", SITES)
    (coordinator / "keys.toml").write_text("north = 1\n")
    with pytest.raises(SettingError, match="north: not a public key"):
        read_keys(coordinator / "keys.toml", SITES)
