"""The two studies of examples/robustness.py, made small."""

import importlib.util
import json
from pathlib import Path

import pytest

from fedl2g.experiment.policies import Attack
from fedl2g.runs.directory import RunDirectory
from fedl2g.uploads.attack import hostile_clients

FILE = Path(__file__).parents[2] / "examples" / "robustness.py"


@pytest.fixture
def example(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("robustness_example", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def play(study, **constants):
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
        arguments = [study, "--samples", "300", "--rounds", "2", "--jobs", "1", "--seeds", "2", "--out", str(tmp_path)]
        monkeypatch.setattr("sys.argv", ["robustness.py", *arguments])
        module.main()
        return tmp_path, json.loads((tmp_path / f"{study}.json").read_text())

    return play


def pooled(run, clients):
    """Correct / samples of these clients, by counting, averaged over all three records."""
    sizes = [len(test) for test in run.partition().test]
    shares = []
    for record in run.history():
        correct = sum(round(record.accuracy.clients[c] * sizes[c]) for c in clients)
        shares.append(correct / sum(sizes[c] for c in clients))
    return 100 * sum(shares) / len(shares)


@pytest.mark.slow
def test_drop_out_is_measured_on_all_clients(example, capsys):
    out, found = example("dropout", DROPOUT=(0, 0.5), EVERY_METHOD=("local",))
    for chance, column in ((0, "0%"), (0.5, "50%")):
        runs = [RunDirectory(out / f"dropout-{chance}" / f"local-s{seed}") for seed in (0, 1)]
        assert found[column]["local"] == pytest.approx([pooled(run, range(20)) for run in runs])
    away = [len(record.away) for record in runs[0].history()]
    assert away[0] == 0
    assert 0 < away[1] < 20
    mean = sum(found["50%"]["local"]) / 2
    assert f" {mean:.1f} ± " in capsys.readouterr().out


@pytest.mark.slow
def test_attack_is_measured_on_the_clients_that_are_always_honest(example):
    out, found = example("attack", SHARES=(0, 0.3), RULES=("median",), ATTACKED=("feddistill",))
    for seed in (0, 1):
        honest = set(range(20)) - hostile_clients(Attack(share=0.3), 20, seed)
        assert len(honest) == 14
        for share, column in ((0, "0%"), (0.3, "30%")):
            run = RunDirectory(out / f"attack-{share}-median" / f"feddistill-s{seed}")
            assert found[column]["feddistill, median"][seed] == pytest.approx(pooled(run, honest))
            assert run.experiment().aggregation.rule == "median"
            assert set(run.history()[1].hostile) == (set(range(20)) - honest if share else set())
