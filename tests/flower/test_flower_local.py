"""The grid of this machine: messages reach the ClientApp and come back whole, and a process that dies is replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedl2g.engines import wire
from fedl2g.engines.flower import local, local_node
from fedl2g.engines.flower.identity import Refused, raise_refusal, unpack_identity
from fedl2g.engines.flower.local import LocalGrid
from fedl2g.engines.flower.records import pack_records, unpack_records, unwrap, wrap
from fedl2g.errors import PayloadError


class ThreadProcess:
    """Stands for a process: the same loop in a thread, which ends when its connection does."""

    started = 0

    def __init__(self) -> None:
        type(self).started += 1
        self.pid = type(self).started
        self.connection, theirs = Pipe()

        def serve() -> None:
            with suppress(EOFError, OSError, SystemExit):
                local_node.serve(theirs)
            theirs.close()

        threading.Thread(target=serve, daemon=True).start()

    def send(self, message: bytes) -> None:
        wire.send_packed(self.connection, message)

    def receive(self) -> Any:
        return wire.receive(self.connection)

    def exit_code(self) -> int:
        return -9

    def kill(self) -> None:
        self.connection.close()


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGrid]:
    """Three nodes served by two lanes."""
    monkeypatch.setattr(ThreadProcess, "started", 0)
    monkeypatch.setattr(local, "take_process", lambda module: ThreadProcess())
    monkeypatch.setattr(local, "release_process", lambda process: process.kill())
    made = LocalGrid(tmp_path, 3, 2)
    yield made
    made.close()


def replies(grid: LocalGrid, names: list[str]) -> dict[str, Message]:
    found: dict[str, Message] = {}
    while len(found) < len(names):
        found |= {m.metadata.reply_to_message_id: m for m in grid.pull_messages(set(names) - found.keys())}
    return found


def test_records_survive_packing_and_unpacking() -> None:
    records = RecordDict(
        {
            "about": ConfigRecord({"run": "a", "round": 2, "classes": ["x", "y"], "share": 0.1, "is": True}),
            "numbers": MetricRecord({"loss": float("nan"), "samples": 3, "many": [1.5, 2.5]}),
            "payload": ArrayRecord(
                {"a": Array("uint8", (3,), "own", b"\x00\x01\xff"), "e": Array("u", (0,), "own", b"")}
            ),
            "nothing": MetricRecord({}),
        }
    )
    again = unpack_records(pack_records(records))
    assert list(wrap(records)) == ["envelope"]
    assert pack_records(unwrap(wrap(records))) == pack_records(records)
    assert list(again) == list(records)
    assert {n: type(r) for n, r in again.items()} == {n: type(r) for n, r in records.items()}
    assert dict(again["about"]) == dict(records["about"])
    assert str(dict(again["numbers"])) == str(dict(records["numbers"]))
    assert dict(again["payload"]) == dict(records["payload"])


MALFORMED: dict[str, RecordDict] = {
    "another record beside it": RecordDict({**wrap(RecordDict({})), "more": ConfigRecord({})}),
    "numbers": RecordDict({"envelope": MetricRecord({"content": 1})}),
    "text": RecordDict({"envelope": ConfigRecord({"content": "text"})}),
    "another entry beside it": RecordDict({"envelope": ConfigRecord({"content": b"", "more": 1})}),
    "too large": RecordDict({"envelope": ConfigRecord({"content": bytes(2**20 + 1)})}),
    **{
        text: RecordDict({"envelope": ConfigRecord({"content": len(text).to_bytes(8, "big") + text.encode()})})
        for text in (
            "", "[", "[]", "7", "null", '{"a": 1}', '{"a": ["config", 1]}', '{"a": ["code", {}]}',
            '{"a": ["config", {"b": {}}]}', '{"a": ["metrics", {"b": "c"}]}', '{"a": ["metrics", {"b": true}]}',
            '{"a": ["arrays", {"b": ["f", [1], "s"]}]}', '{"a": ["arrays", {"b": ["f", [1], "s", 4]}]}',
            '{"a": ["arrays", {"b": ["f", [1], "s", -4]}]}', "[" * 100_000,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", MALFORMED, ids=lambda text: text[:40])
def test_a_malformed_envelope_is_refused(kind: str) -> None:
    with pytest.raises(PayloadError, match="message: its envelope"):
        unwrap(MALFORMED[kind])


def test_records_of_bytes_are_refused() -> None:
    with pytest.raises(PayloadError, match="message: holds bytes"):
        pack_records(RecordDict({"about": ConfigRecord({"run": b"bytes"})}))


def test_large_records_are_not_wrapped() -> None:
    large = RecordDict({"payload": ArrayRecord({"a": Array("uint8", (2**20,), "own", bytes(2**20))})})
    assert wrap(large) is large
    assert unwrap(large) is large


def test_every_node_says_which_client_it_is(grid: LocalGrid) -> None:
    assert [node.node_id for node in grid.get_nodes()] == [1, 2, 3]
    names = grid.push_messages(Message(RecordDict(), node.node_id, "query") for node in grid.get_nodes())
    found = replies(grid, names)
    assert [unpack_identity(found[name].content, 3) for name in names] == [0, 1, 2]
    assert [found[name].metadata.src_node_id for name in names] == [1, 2, 3]


def test_a_wrapped_request_reaches_its_app(grid: LocalGrid) -> None:
    content = wrap(RecordDict({"about": ConfigRecord({"run": "\x1b"})}))
    (name,) = grid.push_messages([Message(content, 2, "train")])
    with pytest.raises(Refused, match="run"):
        raise_refusal(replies(grid, [name])[name].content)


def test_a_message_that_nobody_waits_for_any_more_is_dropped(grid: LocalGrid) -> None:
    late, good = grid.push_messages([Message(RecordDict(), 1, "query", ttl=1e-9), Message(RecordDict(), 1, "query")])
    assert list(replies(grid, [good])) == [good]
    assert grid.pull_messages([late]) == []


def test_a_kind_that_the_app_does_not_know_is_an_error(grid: LocalGrid) -> None:
    (name,) = grid.push_messages([Message(RecordDict(), 2, "train.twice")])
    reply = replies(grid, [name])[name]
    assert reply.has_error()
    assert "No train function registered with name 'twice'" in reply.error.reason


def test_a_process_that_dies_is_replaced_and_its_message_is_answered_by_an_error(
    grid: LocalGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(root: Path) -> Any:
        raise SystemExit

    with monkeypatch.context() as dying:
        dying.setattr(local_node, "client_app", die)
        (name,) = grid.push_messages([Message(RecordDict(), 1, "query")])
        found = replies(grid, [name])[name]
    assert found.has_error()
    assert found.error.reason == "its process 1 died (signal 9)"
    assert grid.pids == [3, 2]
    names = grid.push_messages(Message(RecordDict(), node, "query") for node in (1, 2, 3))
    assert [unpack_identity(replies(grid, [name])[name].content, 3) for name in names] == [0, 1, 2]
