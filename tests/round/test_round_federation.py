"""The round loop, with engines and servers that do what a test tells them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import fedl2g
from fedl2g.engines.base import Check, Evaluation
from fedl2g.engines.host import Host
from fedl2g.engines.inline import InlineEngine
from fedl2g.errors import Diverged, RunError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.learning.client import Task
from fedl2g.methods.base import ClientHalf, Combined, Options, Reply, Report, ServerHalf, Traits
from fedl2g.methods.registry import Method, get_method
from fedl2g.payload import Payload, TensorSpec
from fedl2g.round.record import RoundRecord
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.observers import EarlyStop


class SumOptions(Options):
    """Adds up one number from each client."""

    name: str = "sum"


class Sum(ServerHalf[Any]):
    """Adds up one number from each client."""

    total: torch.Tensor

    def __init__(self, options: SumOptions, task: Task) -> None:
        super().__init__(options, task)
        self.register_buffer("total", torch.zeros(1))

    def broadcast(self, round: int) -> Payload:
        return {"total": self.total}

    def expected(self) -> dict[str, TensorSpec]:
        return {"number": TensorSpec((1,))}

    def update(self, round: int, combined: Combined) -> None:
        self.order = [reply.client for reply in combined.replies]
        self.total = self.total + sum(reply.payload["number"] for reply in combined.replies)

    def metrics(self) -> dict[str, float]:
        return {"total": float(self.total)}


# Named by reference, not registered: other tests go through all registered methods.
METHOD = Method("sum", SumOptions, Sum, ClientHalf, Traits(raw_replies=True))


class Script:
    """An engine whose clients answer and score as the test says; replies come in reverse order."""

    lanes = 1
    retries = False

    def __init__(self, answer: Callable[[int, int], Reply | None], correct: Callable[[int, int], int]) -> None:
        self.answer, self.correct = answer, correct
        self.round = 0
        self.asked: list[list[int]] = []
        self.evaluated: list[int] = []

    def train(self, round: int, participants: Sequence[int], payload: Payload, check: Check) -> Iterator[Reply]:
        self.round = round
        self.asked.append(list(participants))
        for client in reversed(participants):
            reply = self.answer(round, client)
            if reply is not None:
                yield reply

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation]:
        self.evaluated.append(self.round)
        return [Evaluation(c, 10 * (c + 1), self.correct(self.round, c), {"head": 2 * (c + 1)}) for c in clients]

    def save(self, directory: Path) -> None: ...
    def restore(self, directory: Path | None) -> None: ...
    def revive(self) -> None: ...
    def close(self) -> None: ...


def number(client: int, value: float = 1.0, loss: float | None = 0.5) -> Reply:
    return Reply(client, {"number": torch.tensor([value])}, Report(10, 1, loss, seconds=0.25))


def federation_of(
    answer: Callable[[int, int], Reply | None] = lambda round, client: number(client),
    correct: Callable[[int, int], int] = lambda round, client: client + 1,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> Federation:
    experiment = Experiment(**{"method": f"{__name__}:METHOD", "clients": 4, "rounds": 3, **settings})
    server = Sum(experiment.method, Task(3, (1, 8, 8), experiment.seed, experiment.rounds, "small_cnn"))
    return Federation(experiment, server, Script(answer, correct), observers)


def test_a_round_is_recorded() -> None:
    federation = federation_of(lambda round, client: number(client, client + 1.0, loss=0.1 * client))
    federation.run()
    start, *rounds = federation.history
    assert (start.round, start.participants, start.loss, start.up_bytes, start.down_bytes) == (0, [], None, 0, 0)
    assert start.accuracy is not None
    assert [record.round for record in rounds] == [1, 2, 3]
    first = rounds[0]
    assert first.participants == [0, 1, 2, 3]
    assert first.loss == pytest.approx(0.15)
    assert first.client_losses == pytest.approx({0: 0.0, 1: 0.1, 2: 0.2, 3: 0.3})
    assert (first.up_bytes, first.down_bytes) == (16, 16)
    assert first.client_seconds == 1.0
    assert first.refused == {}
    assert [record.server["total"] for record in rounds] == [10.0, 20.0, 30.0]
    assert federation.round == 3
    assert federation.stop_reason is None


def test_replies_reach_the_server_in_the_order_of_the_clients() -> None:
    federation = federation_of()
    federation.run()
    assert federation.server.order == [0, 1, 2, 3]


def test_accuracy_is_pooled_and_averaged_over_clients() -> None:
    federation = federation_of(correct=lambda round, client: [5, 5, 15, 40][client])  # of 10, 20, 30, 40
    federation.run()
    accuracy = federation.history[0].accuracy
    assert accuracy is not None
    assert accuracy.pooled == 0.65
    assert accuracy.clients == {0: 0.5, 1: 0.25, 2: 0.5, 3: 1.0}
    assert accuracy.mean == 0.5625
    assert accuracy.std == pytest.approx(0.2724312)
    assert accuracy.others == {"head": 0.2}


def test_participants_are_drawn_without_replacement_and_anew_each_round() -> None:
    federation = federation_of(clients=50, participation=0.3, rounds=40)
    federation.run()
    asked = federation.engine.asked
    assert all(len(set(chosen)) == 15 and chosen == sorted(chosen) for chosen in asked)
    assert len({tuple(chosen) for chosen in asked}) == 40
    assert {client for chosen in asked for client in chosen} == set(range(50))
    assert asked == [federation.policies.sampler.draw(round) for round in range(1, 41)]
    again = federation_of(clients=50, participation=0.3, method="local", execution={"engine": "workers"})
    assert [again.policies.sampler.draw(round) for round in range(1, 41)] == asked
    other_seed = federation_of(clients=50, participation=0.3, seed=1)
    assert other_seed.policies.sampler.draw(1) != asked[0]


def test_each_client_takes_part_equally_often() -> None:
    federation = federation_of(clients=10, participation=0.3)
    counts = [0] * 10
    for round in range(1, 2001):
        for client in federation.policies.sampler.draw(round):
            counts[client] += 1
    assert min(counts) > 520  # 600 expected, standard deviation 20
    assert max(counts) < 680


@pytest.mark.parametrize(
    ("every", "rounds", "expected"), [(1, 3, [0, 1, 2, 3]), (2, 5, [0, 2, 4, 5]), (10, 4, [0, 4]), (3, 6, [0, 3, 6])]
)
def test_evaluations_come_every_few_rounds_and_at_the_end(every: int, rounds: int, expected: list[int]) -> None:
    federation = federation_of(rounds=rounds, evaluate_every=every)
    federation.run()
    assert federation.engine.evaluated == expected
    assert [record.round for record in federation.history if record.accuracy is not None] == expected
    assert len(federation.history) == rounds + 1


def best_at(*scores: int) -> Callable[[int, int], int]:
    return lambda round, client: scores[min(round, len(scores) - 1)]


@pytest.mark.parametrize(
    ("patience", "every", "scores", "last"),
    [
        (2, 1, (1, 2, 3, 3, 3, 9), 4),  # equal is not better: the first of equal rounds is the best
        (2, 1, (1, 2, 3, 3, 4, 1, 1), 6),
        (3, 1, (9,), 3),
        (1, 1, (5, 4), 1),
        (2, 2, (1, 1, 5, 1, 1, 1, 1), 6),  # counted in evaluations, not in rounds
        (0, 1, (9,), 10),
        (50, 1, (9,), 10),
    ],
)
def test_early_stop_waits_patience_evaluations(patience: int, every: int, scores: tuple[int, ...], last: int) -> None:
    federation = federation_of(
        correct=best_at(*scores), observers=[EarlyStop(patience)], rounds=10, evaluate_every=every
    )
    federation.run()
    assert federation.round == last
    assert federation.stop_reason == ("stopped early" if last < 10 else None)


def bad_from(bad: set[int], rounds: set[int], reply: Callable[[int], Reply]) -> Callable[[int, int], Reply]:
    return lambda round, client: reply(client) if client in bad and round in rounds else number(client)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (lambda client: number(client, float("nan")), "'number': holds NaN"),
        (
            lambda client: number(client, loss=float("inf")),
            "its training loss is inf; expected a number from 0 to 1e+09",
        ),
        (lambda client: Reply(client, {}, Report(10)), "entry 'number' is missing"),
    ],
)
def test_a_refused_reply_is_recorded_and_the_round_goes_on(reply: Callable[[int], Reply], message: str) -> None:
    federation = federation_of(bad_from({1, 3}, {2}, reply))
    federation.run()
    assert [sorted(record.refused) for record in federation.history] == [[], [], [1, 3], []]
    second = federation.history[2]
    assert message in second.refused[1]
    assert second.client_losses.keys() == {0, 2}
    assert second.up_bytes == 8 + (8 if reply(1).payload else 0)  # what arrived is counted, used or not
    assert [record.server.get("total") for record in federation.history] == [None, 4.0, 6.0, 10.0]


def test_a_round_without_any_usable_reply_ends_the_run() -> None:
    federation = federation_of(bad_from({0, 1, 2, 3}, {2}, lambda client: number(client, float("nan"))))
    with pytest.raises(Diverged, match=r"round 2: no reply could be used \(.*NaN"):
        federation.run()
    assert federation.round == 1


def test_one_broken_client_alone_in_a_round_does_not_end_the_run() -> None:
    nan = bad_from({2}, set(range(1, 20)), lambda client: number(client, float("nan")))
    federation = federation_of(nan, rounds=12, participation=0.25)
    federation.run()
    asked = [record.participants for record in federation.history]
    assert [2] in asked
    assert all(bool(record.refused) == (record.participants == [2]) for record in federation.history)
    alone = federation_of(nan, rounds=12, clients=1, participation=1.0)
    alone.run()  # client 0 is sound
    broken = bad_from({0}, set(range(1, 20)), lambda client: number(client, float("nan")))
    with pytest.raises(Diverged, match="round 2"):  # the round before ended like this too
        federation_of(broken, rounds=12, clients=1, participation=1.0).run()


def test_a_server_that_would_send_nan_ends_the_run() -> None:
    federation = federation_of(lambda round, client: number(client, 3e38 if round == 2 else 1.0))
    with pytest.raises(Diverged, match="round 3: the server's broadcast holds NaN or infinite"):
        federation.run()
    assert federation.round == 1


class Diary(Observer):
    """Notes what it is told; stops the run when told to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.notes: list[str | int] = []
        self.stop_after = stop_after

    def on_start(self, federation: Federation) -> None:
        self.notes.append("start")

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        self.notes.append(record.round)
        assert federation.history[-1] is record
        if record.round == self.stop_after:
            federation.stop("enough")
            federation.stop("a later reason")

    def on_end(self, federation: Federation) -> None:
        self.notes.append("end")


def test_observers_see_every_round_and_may_stop_the_run() -> None:
    diary, second = Diary(), Diary(stop_after=2)
    federation = federation_of(observers=[diary, second])
    federation.run()
    assert diary.notes == second.notes == ["start", 0, 1, 2, "end"]
    assert federation.stop_reason == "enough"


def test_state_continues_exactly() -> None:
    whole, first, second = (
        federation_of(rounds=5),
        federation_of(rounds=5, observers=[Diary(2)]),
        federation_of(rounds=5),
    )
    whole.run()
    first.run()
    second.load_state_dict(*first.state_dict())
    assert second.round == 2
    second.run()
    assert second.engine.asked == whole.engine.asked[2:]
    assert [r.server for r in second.history] == [r.server for r in whole.history]


def test_starting_over_forgets_everything() -> None:
    federation = federation_of(observers=[Diary(2)])
    federation.run()
    assert federation.server.total == 8.0
    federation.start_over()
    assert (federation.round, federation.stop_reason, federation.server.total) == (0, None, 0.0)


def test_records_survive_json() -> None:
    federation = federation_of(bad_from({1}, {2}, lambda client: number(client, float("nan"))))
    federation.run()
    for record in federation.history:
        assert RoundRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


# ---- with real clients


def test_a_run_whose_clients_all_diverge_is_recorded_as_diverged(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(models="small_cnn", rounds=6)
    real = Host.train

    def diverging(host: Host, client: int, round: int, payload: Payload) -> Reply:
        reply = real(host, client, round, payload)
        if round == 3:
            reply.payload["rows"][0, 0] = float("nan")
        return reply

    monkeypatch.setattr(Host, "train", diverging)
    result = fedl2g.run(experiment, tmp_path / "run")
    assert (result.status, result.rounds) == ("diverged", 2)
    assert fedl2g.run(experiment, tmp_path / "run") == result
    assert fedl2g.load(tmp_path / "run") == result


def test_one_diverging_client_does_not_end_the_run(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(models="small_cnn", participation=1.0, method="local")
    real = Host.train

    def diverging(host: Host, client: int, round: int, payload: Payload) -> Reply:
        if client == 2 and round == 2:
            with torch.no_grad():
                host.half(2).model.head.weight.fill_(float("nan"))
        return real(host, client, round, payload)

    monkeypatch.setattr(Host, "train", diverging)
    result = fedl2g.run(experiment, tmp_path / "run")
    assert result.status == "finished"
    history = RunDirectory.open(tmp_path / "run").history()
    assert [sorted(record.refused) for record in history] == [[], [], [2], [2], [2]]
    assert all(record.client_losses.keys() == {0, 1, 3} for record in history[2:])


def test_early_stop_is_the_result_of_a_run(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = tiny(models="small_cnn", rounds=50, patience=2, method="local", client_lr=1e-12)  # nobody moves
    result = fedl2g.run(experiment, tmp_path / "run")
    assert (result.status, result.rounds, result.best_round) == ("stopped early", 2, 0)


@pytest.mark.parametrize(("rounds", "ended"), [(6, ("finished", 6)), (50, ("stopped early", 7))])
def test_early_stop_counts_from_the_end_of_the_warm_up(
    tiny: Callable[..., Experiment], tmp_path: Path, rounds: int, ended: tuple[str, int]
) -> None:
    """Nobody moves in the warm-up (5 rounds), nor visibly after it: two evaluations after it end the run."""
    experiment = tiny(models="small_cnn", rounds=rounds, patience=2, client_lr=1e-12, method__warmup_rounds=5)
    result = fedl2g.run(experiment, tmp_path / "run")
    assert (result.status, result.rounds) == ended
    assert result.best_round == 0


def test_a_best_round_after_the_warm_up_is_counted_from_the_start(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """The paper's "converged rounds" include the warm-up, which here is longer than the patience."""
    experiment = tiny(models="small_cnn", samples=400, rounds=9, patience=2, client_lr=0.05, method__warmup_rounds=4)
    result = fedl2g.run(experiment, tmp_path / "run")
    history = RunDirectory.open(tmp_path / "run").history()
    accuracies = [record.accuracy.pooled for record in history if record.accuracy is not None]
    assert accuracies[:5] == accuracies[:1] * 5
    assert result.best_round > 4
    assert result.best_round == accuracies.index(max(accuracies))


def test_bytes_are_those_really_sent(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    result = fedl2g.run(tiny(models="small_cnn", rounds=2, participation=1.0), tmp_path / "run")
    history = RunDirectory.open(tmp_path / "run").history()
    assert [record.down_bytes for record in history[1:]] == [4 * (10 * 8 + 10 * 512 * 4)] * 2
    assert all(record.up_bytes % (8 + 512 * 4) == 0 for record in history)
    assert all(4 * (8 + 512 * 4) <= record.up_bytes <= 4 * 10 * (8 + 512 * 4) for record in history[1:])
    assert result.down_mb_per_round == 4 * (10 * 8 + 10 * 512 * 4) / 2**20


def test_a_run_that_diverges_before_its_first_evaluation_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {"samples": 60, "clients": 2, "partition": "iid", "models": "small_cnn", "rounds": 1, "method": "feddistill"}
    server = get_method("feddistill").server
    monkeypatch.setattr(server, "broadcast", lambda self, round: {"rows": torch.full((1, 2), torch.nan)})
    for _ in range(2):  # and says it again when it is asked again
        with pytest.raises(RunError, match=r"before its first evaluation.*round 1: the server's broadcast holds NaN"):
            fedl2g.run(Experiment(**tiny), tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    monkeypatch.undo()
    monkeypatch.setattr(InlineEngine, "evaluate", lambda self, clients, payload: [])
    with pytest.raises(RunError, match=r"before its first evaluation.*no client could be evaluated"):
        fedl2g.run(Experiment(**tiny), tmp_path / "other")
