"""The paper as data: every experiment is there with its numbers, scales change what they say, no cell is run twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment, overlay
from fedl2g.experiment.protocol import Choices
from fedl2g.paper.catalog import narrow, paper_experiment, paper_experiments, plan, read_experiment, scale

TABLES = [
    "data",
    "model",
    "cost",
    "server_lr",
    "warmup",
    "quiz_size",
    "aggregation",
    "noise",
    "epochs",
    "beta",
    "domainnet",
]
FIGURES = ["loss_increase", "loss_curves", "tsne", "distributions", "convergence"]


def test_every_experiment_of_the_paper_is_listed() -> None:
    assert list(paper_experiments()) == TABLES + FIGURES


@pytest.mark.parametrize("name", TABLES)
def test_every_number_of_the_paper_has_a_cell(name: str) -> None:
    experiment = paper_experiment(name)
    shown = {(m, c.paper or c.name) for m, c in experiment.cells()}
    printed = {(m, key) for m, row in experiment.numbers.items() for key, value in row.items() if value is not None}
    assert shown == printed


def test_numbers_are_the_papers() -> None:
    data = paper_experiment("data")
    (column,) = (c for c in data.columns if c.name == "dirichlet/cifar100")
    assert data.paper("fedl2g-f", column) == {"mean": 43.8, "std": 0.4}
    warmup = paper_experiment("warmup")
    assert warmup.paper("fedl2g-l", warmup.columns[0]) == {"mean": 41.7, "rounds": 160}
    cost = paper_experiment("cost")
    assert cost.paper("fml", cost.columns[0]) == {"mean": 70.57}


def test_heads_that_cannot_be_shared_have_no_cell() -> None:
    cells = {(m, c.name) for m, c in paper_experiment("model").cells()}
    assert ("fedgh", "htm10") not in cells
    assert ("fedl2g-f", "htm10") in cells


def test_full_is_the_paper_to_the_letter() -> None:
    cells = {(c.method, c.column): c.settings for c in plan(paper_experiment("data"), scale("full"), 1)}
    main = cells["fedl2g-f", "dirichlet/cifar100"]
    assert main == {
        "dataset": "cifar100",
        "partition": "dirichlet:0.1",
        "models": "htfe8",
        "clients": 20,
        "participation": 1.0,
        "rounds": 1000,
        "patience": 100,
        "method": "fedl2g-f",
        "method.server_lr": 100.0,
        "method.warmup_rounds": 50,
        "method.quiz_size": 10,
        "protocol": "paper",
    }
    experiment = Experiment(**overlay({}, {**main, "seed": 2}))
    assert experiment.choices == Choices(reshuffle=False, equal_start=True, partition_seed=1, quiz="first")
    every = [cell for known in paper_experiments().values() for cell in plan(known, scale("full"), 1)]
    assert {cell.settings["protocol"] for cell in every} == {"paper"}
    assert experiment.method.model_dump(include={"server_lr", "warmup_rounds"}) == {
        "server_lr": 100,
        "warmup_rounds": 50,
    }
    assert (experiment.batch_size, experiment.client_lr, experiment.local_epochs) == (10, 0.01, 1)
    assert cells["fml", "pathological/tiny-imagenet"]["partition"] == "pathological:20"
    assert cells["fml", "dirichlet/flowers102"]["partition"] == "dirichlet:0.01"


def test_the_noise_table_says_which_reading_is_that_of_the_work_it_follows() -> None:
    first, *_ = paper_experiment("noise").notes
    assert "FedPCL" in first
    assert "`s absolute` are the like-for-like ones" in first


def test_the_cost_table_says_whose_seconds_it_has() -> None:
    cost = paper_experiment("cost")
    assert [c.heading[1] for c in cost.columns] == ["up", "down", "a client", "server", "a client, warm-up round"]
    assert any(note.startswith("Client seconds are those of one client, mean over clients") for note in cost.notes)


def test_columns_change_what_they_are_about() -> None:
    def values(name: str, key: str) -> list[object]:
        return list(dict.fromkeys(c.settings.get(key) for c in plan(paper_experiment(name), scale("full"), 1)))

    assert values("epochs", "local_epochs") == [5, 10, 20]
    assert values("quiz_size", "method.quiz_size") == [2, 5, 10]
    assert values("warmup", "method.warmup_rounds") == [0, 1, 10, 20, 50, 100]
    assert values("beta", "partition") == ["dirichlet:0.01", "dirichlet:0.1", "dirichlet:0.5", "dirichlet:1"]
    assert values("server_lr", "method.server_lr") == [0.01, 0.05, 0.1, 0.5, 1.0, 10.0, 50.0, 100.0, 500.0]
    assert values("noise", "noise.scale") == [None, "absolute", "relative"]
    assert values("noise", "noise.coefficient") == [None, 0.1, 0.2]
    assert values("model", "clients") == [20, 50, 100]
    assert values("model", "participation") == [1.0, 0.5, 0.1]


@pytest.mark.parametrize("at", ["full", "small", "smoke"])
@pytest.mark.parametrize("name", TABLES + FIGURES)
def test_every_cell_is_a_valid_experiment(name: str, at: str) -> None:
    for cell in plan(paper_experiment(name), scale(at), 1):
        experiment = Experiment(**overlay({}, {**cell.settings, "seed": cell.seed}))
        for key, value in cell.settings.items():
            table, _, option = key.partition(".")
            assert getattr(getattr(experiment, table), option) == value if option else True, key


@pytest.mark.parametrize(
    ("overrides", "warmup"),
    [({"rounds": 11}, 10), ({"rounds": 10}, 5), ({"rounds": 1}, 0), ({"rounds": 10, "method.warmup_rounds": 8}, 8)],
)
def test_fewer_rounds_shorten_a_preset_warmup_that_would_leave_none(overrides: dict[str, int], warmup: int) -> None:
    local, *guided = plan(paper_experiment("aggregation"), scale("small"), 1, ["cifar100"], overrides)
    assert {cell.settings["method.warmup_rounds"] for cell in guided} == {warmup}
    assert local.settings["rounds"] == overrides["rounds"]
    assert local.settings.get("method.warmup_rounds") == overrides.get("method.warmup_rounds")


def test_equal_cells_of_different_tables_are_one_run() -> None:
    def folders(name: str) -> set[str]:
        return {cell.folder for cell in plan(paper_experiment(name), scale("full"), 1)}

    assert folders("aggregation") & folders("data") == {
        c.folder for c in plan(paper_experiment("data"), scale("full"), 1, ["fedl2g-l,fedl2g-f", "dirichlet/cifar10*"])
    }
    for name in ("cost", "warmup", "quiz_size", "server_lr", "noise", "beta", "loss_increase"):
        assert folders(name) & folders("data"), name
    assert folders("loss_curves") & folders("model")


def test_small_shortens_warmup_and_keeps_zero_and_one() -> None:
    cells = plan(paper_experiment("warmup"), scale("small"), 1, ["fedl2g-f"])
    assert [c.settings["method.warmup_rounds"] for c in cells] == [0, 1, 2, 4, 10, 20]
    assert {c.settings["models"] for c in cells} == {"small"}


def test_small_has_the_rounds_its_summary_says() -> None:
    small = scale("small")
    cells = plan(paper_experiment("data"), small, 1)
    assert {c.settings["rounds"] for c in cells} == {40}
    assert "40 rounds" in small.summary


def test_small_trains_as_many_epochs_in_every_cell_of_the_epochs_table() -> None:
    cells = plan(paper_experiment("epochs"), scale("small"), 1)
    trained = {
        (c.settings["rounds"] - c.settings.get("method.warmup_rounds", 0)) * c.settings["local_epochs"] for c in cells
    }
    assert trained == {40}
    assert {c.settings["method.warmup_rounds"] for c in cells if c.method.startswith("fedl2g")} == {10}
    assert "40 epochs" in paper_experiment("epochs").notes[0]


def test_only_names_methods_and_columns() -> None:
    data = paper_experiment("data")
    part = narrow(data, ["fedl2g-f,cifar10"])
    assert part.methods == ("fedl2g-f",)
    assert [column.name for column in part.columns] == ["pathological/cifar10", "dirichlet/cifar10"]
    assert narrow(data, ()) == data
    with pytest.raises(SettingError, match="did you mean 'fedproto'"):
        narrow(data, ["fedprotto"])
    with pytest.raises(SettingError, match="did you mean 'warmup'"):
        paper_experiment("warm_up")
    with pytest.raises(SettingError, match="did you mean 'small'"):
        scale("smal")


def test_adding_an_experiment_is_adding_an_entry() -> None:
    entry = {
        "name": "mine",
        "kind": "table",
        "title": "Batch sizes",
        "methods": ["local"],
        "columns": [{"name": "20", "settings": {"batch_size": 20}}],
    }
    mine = read_experiment(entry, [], {"values": {"local": {"20": 40.0}}})
    (cell,) = plan(mine, scale("smoke"))
    assert cell.settings["batch_size"] == 20
    assert mine.paper("local", mine.columns[0]) == {"mean": 40.0}


def test_loss_curves_are_of_htfe9_as_in_the_paper() -> None:
    cells = plan(paper_experiment("loss_curves"), scale("full"), 1)
    assert {cell.settings["models"] for cell in cells} == {"htfe9"}
    assert len(cells) == 10
    assert {cell.settings["models"] for cell in plan(paper_experiment("loss_curves"), scale("small"), 1)} == {
        "small,resnet4"
    }


def test_distributions_have_ten_panels() -> None:
    cells = plan(paper_experiment("distributions"), scale("full"), 1)
    assert [(c.settings["dataset"], c.settings["partition"], c.settings["clients"]) for c in cells] == [
        ("cifar10", "pathological:2", 20),
        ("cifar100", "pathological:10", 20),
        ("flowers102", "pathological:10", 20),
        ("tiny-imagenet", "pathological:20", 20),
        ("cifar10", "dirichlet:0.1", 20),
        ("cifar100", "dirichlet:0.1", 20),
        ("flowers102", "dirichlet:0.01", 20),
        ("tiny-imagenet", "dirichlet:0.01", 20),
        ("cifar100", "dirichlet:0.1", 50),
        ("cifar100", "dirichlet:0.1", 100),
    ]


@pytest.mark.parametrize("name", ["warmup", "beta"])
def test_two_rounds_that_the_paper_gives_for_one_cell_are_noted(name: str) -> None:
    found = {}
    for table, column_name in (("warmup", "50"), ("beta", "0.1")):
        experiment = paper_experiment(table)
        (column,) = (column for column in experiment.columns if column.name == column_name)
        found[table] = [experiment.paper(method, column) for method in ("fedl2g-l", "fedl2g-f")]
    rounds = {table: [cell["rounds"] for cell in cells if cell] for table, cells in found.items()}
    assert rounds == {"warmup": [159, 160], "beta": [176, 235]}
    assert [cell["mean"] for cell in found["warmup"] if cell] == [cell["mean"] for cell in found["beta"] if cell]
    (note,) = paper_experiment(name).notes
    assert all(str(number) in note for numbers in rounds.values() for number in numbers)


@pytest.mark.parametrize("name", TABLES + FIGURES)
def test_fidelity_names_the_command_of_every_table_and_figure(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "fidelity.md").read_text(encoding="utf-8")
    assert f"`fedl2g paper run {name}`" in text
