"""The parts of an exchange and of the nodes' directory, one by one, over a grid without any training."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fake_grid import NODE_UNAVAILABLE, QUICK, FakeClock, FakeGrid, FakeNode, Handler, stranger
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedl2g.engines.base import Absent, Evaluation, Rejected
from fedl2g.engines.flower import exchange as exchange_module
from fedl2g.engines.flower import identity
from fedl2g.engines.flower.exchange import Exchange, Question, error_of
from fedl2g.engines.flower.identity import Refused
from fedl2g.engines.flower.nodes import Nodes
from fedl2g.engines.flower.terms import Limits, Terms
from fedl2g.errors import Diverged, FedL2GError, PayloadError, RunError

CLIENTS = range(3)
GRACE = 60.0


def answering(client: int, content: RecordDict | None = None) -> Handler:
    """A node that says who it is, and answers any question with its number or with the content given."""

    def handle(request: Message) -> Message:
        if request.metadata.message_type == "query":
            return Message(identity.pack_identity(client), reply_to=request)
        return Message(content or RecordDict({"says": ConfigRecord({"client": client})}), reply_to=request)

    return handle


def spoiled() -> RecordDict:
    """An answer that cannot be used."""
    return RecordDict({"spoiled": ConfigRecord({})})


def read(client: int, records: RecordDict) -> Evaluation:
    if "spoiled" in records:
        raise PayloadError("it is spoiled")
    if "refusal" in records:
        raise Refused("RunError", "disk full")
    said: Any = records["says"]
    return Evaluation(client, 10, said["client"], {})


class World:
    """Three clients on three nodes, and a clock that only an exchange moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.grid = FakeGrid({100 + client: FakeNode(answering(client)) for client in CLIENTS}, self.clock)
        grid: Any = self.grid
        self.nodes = Nodes(grid, len(CLIENTS), QUICK, self.clock)

    def node(self, client: int) -> FakeNode:
        return self.grid.nodes[100 + client]

    def says(self, client: int, content: RecordDict) -> None:
        self.node(client).handle = answering(client, content)

    def meet(self) -> None:
        """Learn where all clients live."""
        self.nodes.identify(CLIENTS)
        self.nodes.identify(CLIENTS)

    def exchange(self, limits: Limits = Limits(), terms: Terms = QUICK, kind: Any = "evaluate") -> Exchange[Evaluation]:  # noqa: B008 (frozen)
        question = Question(kind, 4, RecordDict(), read)
        return Exchange(question, CLIENTS, self.nodes, terms, limits, self.clock)


@pytest.fixture
def world() -> World:
    return World()


def sent(world: World, client: int) -> int:
    """How often a client was asked the question."""
    return world.node(client).received.count("evaluate")


def test_nodes_are_asked_once_who_they_are_and_only_if_somebody_is_looked_for(world: World) -> None:
    world.nodes.identify([])
    assert world.node(0).received == []
    world.nodes.identify([0])
    assert 0 not in world.nodes  # asked, but its answer has not been read
    world.nodes.identify([0])
    assert [world.nodes[client] for client in CLIENTS] == [100, 101, 102]
    world.clock.sleep(60)
    world.nodes.identify([*CLIENTS, 3])
    assert all(world.node(client).received == ["query"] for client in CLIENTS)


def test_new_nodes_are_not_looked_for_at_every_poll(world: World) -> None:
    world.meet()
    world.grid.nodes[200] = FakeNode(answering(0))
    world.nodes.forget(0)
    world.nodes.identify(CLIENTS)
    assert world.grid.nodes[200].received == []
    world.clock.sleep(QUICK.first_pause)
    world.nodes.identify(CLIENTS)
    assert world.grid.nodes[200].received == ["query"]


def test_a_node_that_is_none_of_ours_is_not_asked_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.grid.nodes = {7: FakeNode(stranger(9)), **world.grid.nodes, 900: FakeNode(stranger(0))}
    with caplog.at_level(logging.WARNING):
        world.meet()
    assert world.nodes.rejected == {7, 900}
    assert "node 7 is refused: it claims to be client 9; expected a number from 0 to 2" in caplog.messages
    assert "node 900 is refused: it claims to be client 0, which lives on node 100" in caplog.messages
    world.clock.sleep(60)
    world.nodes.identify([3])
    assert world.grid.nodes[7].received == ["query"]


def test_a_node_that_fails_to_say_who_it_is_is_asked_again(world: World) -> None:
    world.node(1).handle = lambda request: Message(Error(8, "killed"), reply_to=request)
    world.meet()
    assert 1 not in world.nodes
    world.node(1).handle = answering(1)
    world.clock.sleep(1)
    world.meet()
    assert world.nodes[1] == 101


def test_a_node_that_never_identifies_itself_is_ignored_until_its_restart(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.node(1).handle = lambda request: Message(Error(8, "no file\x1b[2J"), reply_to=request)
    with caplog.at_level(logging.WARNING):
        for _ in range(200):
            world.meet()
            world.clock.sleep(1)
    assert world.node(1).received == ["query"] * QUICK.identity_attempts
    assert world.nodes.rejected == {101}
    assert [line for line in caplog.messages if "given up" in line] == [
        "node 101 is given up: it failed 10 times to say which client it is (no file [2J); restart its site"
    ]
    assert {world.nodes[client] for client in (0, 2)} == {100, 102}
    world.node(1).started, world.node(1).handle = "twice", answering(1)
    assert world.nodes.restarted(waiting=False) == {101}
    world.clock.sleep(1)
    world.meet()
    assert world.nodes[1] == 101


def test_a_restart_is_seen_until_the_node_gets_a_message_again(world: World) -> None:
    world.meet()
    world.node(1).started = "twice"
    assert world.nodes.restarted(waiting=False) == set()
    assert world.nodes.restarted(waiting=True) == {101}
    assert world.nodes.restarted(waiting=True) == set()  # not at every poll
    world.clock.sleep(1)
    assert world.nodes.restarted(waiting=True) == {101}
    world.nodes.push([Message(RecordDict(), 101, "query")])
    world.clock.sleep(1)
    assert world.nodes.restarted(waiting=True) == set()


def test_a_node_that_is_restarted_before_it_said_who_it_is_is_asked_again(world: World) -> None:
    world.node(1).handle = lambda request: None
    world.nodes.identify(CLIENTS)
    world.node(1).started, world.node(1).handle = "twice", answering(1)
    assert world.nodes.restarted(waiting=False) == {101}
    world.clock.sleep(1)
    world.meet()
    assert world.nodes[1] == 101


def test_only_clients_that_are_due_and_known_are_asked(world: World) -> None:
    exchange = world.exchange()
    exchange.send()
    assert exchange.asked == {}
    world.meet()
    exchange.due[2] = 5.0
    exchange.send()
    assert sorted(exchange.asked.values()) == [0, 1]
    assert exchange.due == {2: 5.0}
    assert exchange.reasons == {0: exchange_module.LATE, 1: exchange_module.LATE, 2: exchange_module.UNKNOWN}


def test_quick_nodes_are_kept_awake_for_the_next_request(world: World) -> None:
    awake = replace(QUICK, awake=2, awake_seconds=5.0)
    world.node(2).seconds = 9
    for _ in range(3):
        assert len(list(world.exchange(terms=awake).answers())) == 3
    assert world.nodes.quick == {0, 1}
    once = ["evaluate", "query.awake", "query.awake"]  # behind the request, which is served first
    assert world.node(0).received == ["query", "evaluate", *once, *once]
    assert world.node(2).received == ["query", *["evaluate"] * 3]
    list(world.exchange().answers())
    assert world.nodes.wake_messages == set()  # their answers were taken, and not read


def test_nothing_is_on_its_way_when_a_run_ends(world: World) -> None:
    awake = replace(QUICK, awake=2, awake_seconds=5.0)
    for kind in ("evaluate", "evaluate.keep"):
        list(world.exchange(terms=awake, kind=kind).answers())
    assert world.nodes.quick
    assert world.node(0).received == ["query", "evaluate", "evaluate.keep"]


def test_nodes_of_a_large_federation_are_not_kept_awake(world: World) -> None:
    for _ in range(2):
        list(world.exchange(terms=replace(QUICK, awake=2, awake_nodes=2)).answers())
    assert world.node(0).received == ["query", "evaluate", "evaluate"]


@pytest.mark.parametrize("seconds", [None, 30.0])
def test_a_request_outlives_the_deadline(seconds: float | None, world: World) -> None:
    world.meet()
    lives: list[float] = []
    world.node(0).handle = lambda request: lives.append(request.metadata.ttl)  # type: ignore[func-returns-value]
    world.exchange(Limits(deadline_seconds=seconds)).send()
    assert lives == [12 * 3600 if seconds is None else seconds + GRACE]


def test_a_request_that_flower_does_not_accept_is_sent_later_to_whatever_node_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.meet()
    exchange = world.exchange()
    monkeypatch.setattr(world.grid, "push_messages", lambda requests: [])
    exchange.send()
    assert exchange.asked == {}
    assert exchange.due == dict.fromkeys(CLIENTS, QUICK.first_pause)
    assert set(exchange.reasons.values()) == {exchange_module.GONE}
    assert 0 not in world.nodes


def test_a_lost_request_is_sent_again_when_its_node_was_restarted(world: World) -> None:
    world.meet()
    world.node(1).handle = lambda request: None
    exchange = world.exchange()
    exchange.send()
    assert [answer.client for answer in exchange.collect()] == [0, 2]
    exchange.retry_restarted()
    assert list(exchange.asked.values()) == [1]
    world.node(1).started, world.node(1).handle = "twice", answering(1)
    world.clock.sleep(1)
    exchange.retry_restarted()
    assert exchange.reasons == {1: exchange_module.RESTARTED}
    exchange.send()
    assert [answer.client for answer in exchange.collect()] == [1]
    assert not exchange.pending


def test_pauses_double_up_to_the_longest() -> None:
    terms = Terms(poll_seconds=0.1, first_pause=1.0, longest_pause=5.0)
    assert [terms.pause(failures) for failures in (1, 2, 3, 4, 10_000)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_failed_request_waits_longer_each_time(world: World) -> None:
    world.meet()
    exchange = world.exchange()
    for failures in (1, 2, 3):
        exchange.fail(0, Error(8, "killed"))
        assert exchange.due[0] == world.clock.now + QUICK.pause(failures)
    assert exchange.reasons[0] == "its node reports error 8: killed"
    assert 0 in world.nodes
    exchange.fail(1, Error(NODE_UNAVAILABLE, "gone"))
    assert 1 not in world.nodes
    assert exchange.reasons[1] == exchange_module.GONE


def test_too_many_failures_in_a_row_end_the_run(world: World) -> None:
    exchange = world.exchange(terms=replace(QUICK, attempts=2))
    exchange.fail(0, Error(8, "killed"))
    with pytest.raises(RunError, match="client 0: failed 2 times in a row; its node reports error 8: killed"):
        exchange.fail(0, Error(8, "killed"))


def test_all_answer(world: World) -> None:
    assert list(world.exchange(Limits(minimum=3)).answers()) == [Evaluation(c, 10, c, {}) for c in CLIENTS]


def test_an_answer_to_an_earlier_question_is_not_taken_for_one(world: World) -> None:
    world.meet()
    exchange = world.exchange()
    exchange.send()
    exchange.asked.clear()
    assert list(exchange.collect()) == []


@pytest.mark.parametrize("policy", ["wait", "skip", "stop"])
def test_at_the_deadline_enough_replies_end_the_exchange(policy: Any, world: World) -> None:
    world.node(2).seconds = 100
    answers = list(world.exchange(Limits(10.0, 2, policy)).answers())
    assert answers[2:] == [Absent(2, exchange_module.LATE)]
    assert 10 <= world.clock.now < 11


def test_at_the_deadline_too_few_replies_are_waited_for(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.node(2).seconds = 100
    with caplog.at_level(logging.WARNING):
        answers = list(world.exchange(Limits(10.0, 3, "wait")).answers())
    assert [answer.client for answer in answers] == [0, 1, 2]
    assert caplog.messages == ["round 4: 2 of 3 replies at the deadline; waiting for more"]


def test_at_the_deadline_too_few_replies_are_dropped_with_the_round(world: World) -> None:
    world.node(2).seconds = 100
    answers = list(world.exchange(Limits(10.0, 3, "skip")).answers())
    skipped = "the round is skipped: fewer than 3 replies"
    assert answers == [Absent(2, exchange_module.LATE), Absent(0, skipped), Absent(1, skipped)]


def test_replies_are_held_back_until_a_round_cannot_be_skipped(world: World) -> None:
    for client in CLIENTS:
        world.node(client).seconds = 10 * (1 + client)
    times = [
        (answer.client, round(world.clock.now, -1)) for answer in world.exchange(Limits(None, 2, "skip")).answers()
    ]
    assert times == [(0, 20), (1, 20), (2, 30)]


def test_at_the_deadline_too_few_replies_stop_the_run(world: World) -> None:
    world.node(2).seconds = 100
    with pytest.raises(RunError, match=r"round 4: 2 replies, but 3 are needed and .* is 'stop'; the last checkpoint"):
        list(world.exchange(Limits(10.0, 3, "stop")).answers())


def test_a_rejected_answer_is_told_from_an_absent_one(world: World) -> None:
    world.says(1, spoiled())
    world.says(2, identity.pack_refusal(RunError("disk full")))
    answers = list(world.exchange().answers())
    assert answers[1:] == [Rejected(1, "it is spoiled"), Absent(2, "the site does not take part: disk full")]
    assert [type(answer) for answer in answers] == [Evaluation, Rejected, Absent]


def test_a_refusal_ends_the_run_where_the_terms_say_so(world: World) -> None:
    world.says(2, identity.pack_refusal(RunError("disk full")))
    with pytest.raises(RunError, match=r"^disk full$"):
        list(world.exchange(terms=replace(QUICK, refusal_ends_run=True)).answers())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("Diverged", Diverged), ("FedL2GError", FedL2GError), ("nearest", FedL2GError), ("x", FedL2GError)],
)
def test_an_error_of_a_node_keeps_its_kind(kind: str, expected: type[FedL2GError]) -> None:
    assert type(error_of(Refused(kind, "words"))) is expected


def test_where_too_few_answers_can_be_used_those_clients_are_asked_again(world: World) -> None:
    world.meet()
    world.says(1, spoiled())
    exchange = world.exchange(Limits(minimum=3))
    exchange.send()
    assert [answer.client for answer in exchange.collect()] == [0, 2]
    exchange.retry_unusable()
    assert exchange.due == {1: world.clock.now + QUICK.pause(1)}
    assert exchange.reasons == {1: "it is spoiled"}
    assert exchange.unusable == {}
    world.says(1, RecordDict({"says": ConfigRecord({"client": 1})}))
    assert [answer.client for answer in exchange.answers()] == [1]
    assert [sent(world, client) for client in CLIENTS] == [1, 2, 1]


@pytest.mark.parametrize("limits", [Limits(minimum=2), Limits(minimum=3, below_minimum="skip"), Limits()])
def test_nobody_is_asked_again_where_that_is_not_called_for(limits: Limits, world: World) -> None:
    world.says(1, spoiled())
    assert Rejected(1, "it is spoiled") in list(world.exchange(limits).answers())
    assert [sent(world, client) for client in CLIENTS] == [1, 1, 1]


def test_without_retries_too_few_usable_answers_end_the_run(world: World) -> None:
    world.says(1, spoiled())
    with pytest.raises(RunError, match=r"^client 1: it is spoiled$"):
        list(world.exchange(Limits(minimum=3), replace(QUICK, retries=False)).answers())
