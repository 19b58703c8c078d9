"""The command `fedl2g`. Heavy imports (torch, matplotlib) stay inside the commands that need them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import fedl2g
from fedl2g.deploy.cli import deploy_app, export
from fedl2g.errors import FedL2GError, SettingError
from fedl2g.paper.cli import paper_app
from fedl2g.report.cli import Trust, plot, report

if TYPE_CHECKING:
    from rich.console import Console

    from fedl2g.data import Dataset
    from fedl2g.experiment import Experiment
    from fedl2g.federation import Observer
    from fedl2g.runs.comparison import Comparison
    from fedl2g.runs.directory import RunDirectory
    from fedl2g.runs.result import RunResult

app = typer.Typer(
    name="fedl2g",
    help="Heterogeneous federated learning: clients with different networks learn together by guiding vectors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # plain help: importing what typer needs to colour it takes longer than all the rest
)
data_app = typer.Typer(help="Look at datasets and partitions.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
app.add_typer(paper_app, name="paper")
app.command()(export)
app.command()(report)
app.command()(plot)

File = Annotated[Path | None, typer.Argument(help="An experiment file (TOML); options are laid over it.")]
Method = Annotated[str | None, typer.Option(help="Method; `fedl2g methods` lists them.")]
DatasetName = Annotated[str | None, typer.Option("--dataset", help="Dataset name, .npz file or folder of images.")]
Samples = Annotated[int | None, typer.Option(help="Use only this many images.")]
PartitionSpec = Annotated[
    str | None, typer.Option("--partition", help="iid, dirichlet:0.1, pathological:2, domain, file:PATH.")
]
Models = Annotated[str | None, typer.Option(help="Model group, or architectures separated by commas.")]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Participation = Annotated[float | None, typer.Option(help="Share of the clients that train in a round.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds at most.")]
Seed = Annotated[int | None, typer.Option(help="Determines every random choice.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="inline or workers.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:0,cuda:1 or mps.")]
Profile = Annotated[bool, typer.Option("--profile", help="Say where the time of the rounds went.")]
Out = Annotated[Path | None, typer.Option(help="The directory to write to.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. method.server_lr=1.")
]
Plugins = Annotated[list[str] | None, typer.Option("--plugin", help="Your own Python file or module to import first.")]
Track = Annotated[
    str | None,
    typer.Option(envvar="FEDL2G_TRACK", show_envvar=False, help="Also write to trackers: tensorboard,mlflow."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line, and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def main() -> NoReturn:
    """Run the command; a FedL2GError is one sentence on stderr and its exit code."""
    logging.basicConfig(format="fedl2g: %(message)s", level=logging.WARNING, stream=sys.stderr)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")  # its own use of torch.jit in the JVP
    sys.path.append(os.getcwd())  # so that "my_models:network" is found where the user stands
    try:
        code = app(standalone_mode=False)
    except FedL2GError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("stopped at once; the run can be continued from its last checkpoint with `fedl2g resume`", 130)
    except Exception as error:
        # Usage errors come from typer's own copy of click or from click itself, depending on its version.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _fail(message(), int(getattr(error, "exit_code", 2)))
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"fedl2g: {message}\n")
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        _print(fedl2g.__version__)
        raise typer.Exit


@app.command()
def run(
    file: File = None,
    method: Method = None,
    dataset: DatasetName = None,
    samples: Samples = None,
    partition: PartitionSpec = None,
    models: Models = None,
    clients: Clients = None,
    participation: Participation = None,
    rounds: Rounds = None,
    seed: Seed = None,
    engine: EngineName = None,
    workers: Workers = None,
    device: Device = None,
    profile: Profile = False,
    out: Out = None,
    settings: Settings = None,
    plugins: Plugins = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment; an interrupted run in the same directory is continued."""
    _load_plugins(plugins)
    experiment = _experiment(
        file,
        settings,
        method=method,
        dataset=dataset,
        samples=samples,
        partition=partition,
        models=models,
        clients=clients,
        participation=participation,
        rounds=rounds,
        seed=seed,
        device=device,
        **{"execution.engine": engine, "execution.workers": workers, "execution.profile": profile or None},
    )
    with _progress(quiet) as (console, watchers):
        _prepare_data(experiment, console)
        from fedl2g.runs.runner import default_directory

        path = out or default_directory(experiment)
        result = fedl2g.run(experiment, path, [*watchers(""), *_trackers(track, path)])
    _finish(result, as_json)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(help="The run directory.", metavar="RUN")],
    engine: EngineName = None,
    workers: Workers = None,
    trust: Trust = False,
    plugins: Plugins = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run to the numbers it would have had."""
    _load_plugins(plugins)
    execution = {key: value for key, value in {"engine": engine, "workers": workers}.items() if value is not None}
    with _progress(quiet) as (_, watchers):
        observers = [*watchers(""), *_trackers(track, directory)]
        result = fedl2g.resume(directory, observers, execution=execution, trust=trust)
    _finish(result, as_json)


@app.command()
def compare(
    file: File = None,
    methods: Annotated[
        str, typer.Option(help="Methods, with options where wanted: local,fedl2g-f,fedl2g-f:server_lr=0")
    ] = "local,fedl2g-l,fedl2g-f",
    seeds: Annotated[int, typer.Option(help="Number of seeds, from --seed on.", min=1)] = 1,
    dataset: DatasetName = None,
    samples: Samples = None,
    partition: PartitionSpec = None,
    models: Models = None,
    clients: Clients = None,
    participation: Participation = None,
    rounds: Rounds = None,
    seed: Seed = None,
    engine: EngineName = None,
    workers: Workers = None,
    jobs: Annotated[int, typer.Option(help="Runs at the same time, each in a process of its own.", min=1)] = 1,
    device: Device = None,
    out: Out = None,
    settings: Settings = None,
    plugins: Plugins = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods and seeds on the same partitions and initial models; resumable as a whole."""
    from fedl2g.runs.batch import run_all
    from fedl2g.runs.comparison import Comparison

    _load_plugins(plugins)
    overrides = _overrides(
        settings,
        dataset=dataset,
        samples=samples,
        partition=partition,
        models=models,
        clients=clients,
        participation=participation,
        rounds=rounds,
        seed=seed,
        device=device,
        **{"execution.engine": engine, "execution.workers": workers},
    )
    comparison = Comparison.plan(file, overrides, methods.split(","), seeds, out)
    with _progress(quiet) as (console, watchers):
        _prepare_data(next(iter(comparison.experiments.values())), console)
        if track:
            os.environ["FEDL2G_TRACK"] = track  # for runs in processes of their own

        def watch(path: Path) -> list[Observer]:
            return [*watchers(path.name), *_trackers(track, path)]

        def failed(path: Path, error: FedL2GError) -> None:
            comparison.failures[path] = error
            if console is not None:
                console.print(f"{path.name}: could not be run", markup=False)

        for path, result in run_all(comparison.experiments, jobs=jobs, watch=watch, failed=failed):
            comparison.add(path, result)
            if console is not None:
                console.print(f"{path.name}: best accuracy {result.best_accuracy:.2%}, round {result.best_round}")
    if any(comparison.results.values()):
        _show_comparison(comparison, as_json)
    comparison.check()


def _show_comparison(comparison: Comparison, as_json: bool) -> None:
    from fedl2g.report.figures import draw_curves

    comparison.write()
    figure = draw_curves(comparison.histories(), comparison.directory / "curves.png")
    if as_json:
        _print(json.dumps(comparison.to_dict()))
        return
    from fedl2g.report.tables import comparison_table

    _out().print(comparison_table(comparison.results))
    _print(f"Runs, comparison.json and {figure.name} are in {comparison.directory}")


@app.command()
def probe(
    file: File = None,
    methods: Annotated[
        str, typer.Option(help="Methods that upload class vectors, with options: fedproto,fedl2g-f:warmup_rounds=5")
    ] = "fedproto,feddistill,fedl2g-l,fedl2g-f",
    dataset: DatasetName = None,
    samples: Samples = None,
    partition: PartitionSpec = None,
    models: Models = None,
    clients: Clients = None,
    participation: Participation = None,
    rounds: Rounds = None,
    seed: Seed = None,
    device: Device = None,
    settings: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Attack the uploads: how well do they tell which classes a client has, and which samples? Scores and accuracy."""
    from rich.table import Table

    from fedl2g.leakage.probe import probe as probe_uploads

    given: dict[str, Any] = {"dataset": dataset, "samples": samples, "partition": partition, "models": models}
    given |= {"clients": clients, "participation": participation, "rounds": rounds, "seed": seed, "device": device}
    leaks = []
    with _progress(quiet) as (console, watchers):
        for number, method in enumerate(methods.split(",")):
            name, *options = method.strip().split(":")
            own = [*(settings or []), *(f"method.{option}" for option in options)]
            experiment = _experiment(file, own, **given, method=name)
            if number == 0:
                _prepare_data(experiment, console)
            leaks.append(probe_uploads(experiment, watchers(experiment.method.name)))
    if as_json:
        _print(json.dumps([leak.to_dict() for leak in leaks]))
        return
    table = Table("method", "best accuracy", "AUC, one round", "AUC, all rounds", "AUC, samples", "up MB", "epsilon")
    for leak in leaks:
        table.add_row(
            leak.method,
            f"{leak.accuracy:.2%}",
            f"{leak.one_round:.3f}",
            f"{leak.all_rounds:.3f}",
            "" if leak.samples is None else f"{leak.samples:.3f}",
            f"{leak.up_mb_per_round:.3f}",
            "" if leak.epsilon is None else f"{leak.epsilon:.3g}",
        )
    table.caption = (
        "AUC of guessing a client's classes from its uploads, and of guessing, with its network, whether a sample was "
        "in an upload: 1 is certainty, 0.5 is guessing"
    )
    _out().print(table)


@app.command("list")
def list_runs(
    root: Annotated[Path, typer.Argument(help="The folder to look in.")] = Path("runs"), as_json: Json = False
) -> None:
    """List the runs below a folder."""
    from fedl2g.runs.directory import find_runs
    from fedl2g.runs.overview import as_text, overview

    if not root.exists():
        raise SettingError(
            f"there is no folder {root}; name the folder that holds your runs, or start one with `fedl2g run`"
        )
    rows = [overview(run) for run in find_runs(root)]
    if as_json:
        _print(json.dumps(rows))
    elif not rows:
        _print(f"no runs in {root}")
    else:
        _print(as_text(rows))


@app.command()
def show(
    directory: Annotated[Path, typer.Argument(help="The run directory.", metavar="RUN")],
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Show one run: its settings, its machine and what it came to."""
    from fedl2g.runs.directory import RunDirectory
    from fedl2g.runs.overview import overview

    run = RunDirectory.open(directory, trust=trust)
    settings = (directory / "experiment.toml").read_text(encoding="utf-8")
    row, result = overview(run), run.result()
    if as_json:
        details = {**row, "environment": run.environment(), "result": result.to_dict() if result else None}
        _print(json.dumps({**details, "history": [record.to_dict() for record in run.history()]}))
        return
    from rich.table import Table

    from fedl2g.report.tables import result_table

    out = _out()
    out.print(f"[bold]{directory}[/bold]: {row['status']}, {row['rounds_done']} of {row['rounds']} rounds")
    if result is not None:
        out.print(result_table(result))
    elif row["best_accuracy"] is not None:
        out.print(f"best accuracy so far {row['best_accuracy']:.2%}; continue with `fedl2g resume {directory}`")
    environment = run.environment()
    machine = Table(show_header=False, box=None)
    for name in ("fedl2g", "commit", "python", "cpu", "cpus", "platform"):
        machine.add_row(name, str(environment.get(name)))
    machine.add_row("packages", ", ".join(f"{k} {v}" for k, v in environment.get("packages", {}).items() if v))
    out.print(machine)
    out.print(settings, highlight=False, markup=False)


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods and their options."""
    from rich.table import Table

    from fedl2g.methods.registry import get_method, method_names

    known = [get_method(name) for name in method_names()]
    rows = [
        {
            "name": method.name,
            "summary": method.summary,
            "options": {
                name: {"default": field.default, "description": field.description}
                for name, field in method.options.model_fields.items()
                if name != "name"
            },
        }
        for method in known
    ]
    if as_json:
        _print(json.dumps(rows))
        return
    table = Table("method", "what it does", "options (--set method.NAME=VALUE)")
    for method, row in zip(known, rows, strict=True):
        options = ", ".join(f"{k}={v['default']}" for k, v in row["options"].items())  # type: ignore[attr-defined]
        table.add_row(method.name, method.summary, options)
    _out().print(table)


@app.command("models")
def list_models(
    time: Annotated[bool, typer.Option(help="Measure the time of a training step (once per machine).")] = True,
    size: Annotated[int, typer.Option(help="Image size in pixels.", min=28, max=1024)] = 32,
    classes: Annotated[int, typer.Option(help="Number of classes.", min=2)] = 100,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the architectures with parameters, feature width and step time, and the model groups."""
    from rich.table import Table

    from fedl2g.models.catalog import ARCHITECTURES, GROUPS
    from fedl2g.models.overview import describe_model

    rows = []
    with _progress(quiet) as (console, _), _working(console, "building") as tick:
        for number, name in enumerate(ARCHITECTURES):
            tick(f"measuring {name}" if time else name, number, len(ARCHITECTURES))
            rows.append(describe_model(name, classes=classes, image_size=size, measure=time))
    if as_json:
        _print(json.dumps({"architectures": rows, "groups": GROUPS}))
        return
    table = Table(
        "architecture", "parameters", "feature width", "ms per step", title=f"{size} px, {classes} classes, batch of 10"
    )
    for row in rows:
        step = "" if row["step_seconds"] is None else f"{1000 * row['step_seconds']:.1f}"
        table.add_row(row["name"], f"{row['parameters']:,}", str(row["feature_width"]), step)
    _out().print(table)
    groups = Table("group", "architectures (client i gets number i mod count)")
    for name, members in GROUPS.items():
        groups.add_row(name, ", ".join(members))
    _out().print(groups)


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the datasets known by name, and what else can be given."""
    from rich.table import Table

    from fedl2g.data import describe_datasets

    names = ("name", "description", "images", "classes", "image_size", "domains", "download_megabytes")
    rows = [{name: getattr(entry, name) for name in names} for entry in describe_datasets()]
    if as_json:
        _print(json.dumps(rows))
        return
    table = Table("dataset", "what it is", "images", "classes", "pixels", "domains", "download MB")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    _out().print(table)
    _print(
        "Your own: an .npz file with `images` and `labels`, a folder of images by class, a folder of domains by class,"
    )
    _print("or a Python function package.module:function that returns (images, labels).")


@app.command()
def explain(
    setting: Annotated[
        str | None, typer.Argument(help="A setting, e.g. rounds or method.server_lr; all if absent.")
    ] = None,
) -> None:
    """Explain a setting: what it means, what it may be, its default."""
    from fedl2g.experiment import documented_fields, explain

    if setting is not None:
        _print(f"{setting}: {explain(setting)}")
        return
    for name, text in documented_fields():
        _print(f"{name}: {text}")


@data_app.command("show")
def show_data(
    file: File = None,
    dataset: DatasetName = None,
    samples: Samples = None,
    partition: PartitionSpec = None,
    clients: Clients = None,
    seed: Seed = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Also draw it: PNG, PDF or SVG file.")] = None,
    settings: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show who holds which classes: the client x class chart of the paper's appendix."""
    from fedl2g.data import make_partition
    from fedl2g.report.bubbles import bubble_table, draw_bubbles

    given = {"dataset": dataset, "samples": samples, "partition": partition, "clients": clients, "seed": seed}
    experiment = _experiment(file, settings, **given)
    with _progress(quiet) as (console, _):
        loaded = _prepare_data(experiment, console)
    made = make_partition(
        experiment.partition,
        loaded.labels,
        loaded.domains,
        clients=experiment.clients,
        classes=loaded.classes,
        seed=experiment.seed,
        test_fraction=experiment.test_fraction,
    )
    if output is not None:
        draw_bubbles(made, loaded.labels, loaded.classes, output, f"{loaded.name}, {experiment.partition}")
    if as_json:
        sizes = [len(a) + len(b) for a, b in zip(made.train, made.test, strict=True)]
        _print(json.dumps({"sizes": sizes, "counts": made.counts(loaded.labels, loaded.classes).tolist()}))
    else:
        _print(bubble_table(made, loaded.labels, loaded.classes))


def _experiment(file: Path | None, settings: list[str] | None, **options: object) -> Experiment:
    from fedl2g.experiment import Experiment, overlay

    overrides = _overrides(settings, **options)
    return Experiment.from_file(file, overrides) if file is not None else Experiment(**overlay({}, overrides))


def _overrides(settings: list[str] | None, **options: object) -> dict[str, Any]:
    from fedl2g.experiment import parse_override

    return {key: value for key, value in options.items() if value is not None} | dict(
        map(parse_override, settings or [])
    )


def _trackers(names: str | None, run: Path) -> list[Observer]:
    if not names:
        return []
    from fedl2g.runs.tracking import trackers

    return trackers(names, run)


def _load_plugins(names: Sequence[str] | None) -> None:
    from fedl2g.references import load_plugin

    for name in names or ():
        load_plugin(name)


def _prepare_data(experiment: Experiment, console: Console | None) -> Dataset:
    """Load the dataset here, where its download can show progress; the run finds it in the cache."""
    with _working(console, "loading data") as tick:
        return fedl2g.load_dataset(
            experiment.dataset, samples=experiment.samples, image_size=experiment.image_size, progress=tick
        )


@contextlib.contextmanager
def _working(console: Console | None, what: str) -> Iterator[Any]:
    from fedl2g.runs.progress import working

    if console is None:
        yield lambda step, done, total: None
    else:
        with working(console, what) as tick:
            yield tick


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[tuple[Console | None, Any]]:
    """A console on stderr and a maker of observers; nothing when quiet."""
    if quiet:
        yield None, lambda title: []
        return
    from fedl2g.runs.progress import RoundProgress, progress_console

    console = progress_console()
    shown: list[RoundProgress] = []

    def watch(title: str) -> list[Observer]:
        shown.append(RoundProgress(console, title))
        return [shown[-1]]  # type: ignore[list-item]

    try:
        yield console, watch
    finally:
        for display in shown:
            display.close()


def _print_profile(run: RunDirectory) -> None:
    from rich.table import Table

    from fedl2g.learning.profiling import total_profile

    parts = total_profile(record.profile_seconds for record in run.history() if record.profile_seconds)
    if not parts:
        return
    whole = sum(parts.values()) or 1.0
    table = Table("where the time went", "seconds", "share", title="profile (seconds of processors, all rounds)")
    for name, seconds in sorted(parts.items(), key=lambda part: -part[1]):
        table.add_row(name, f"{seconds:.2f}", f"{seconds / whole:.1%}")
    _out().print(table)


def _finish(result: RunResult, as_json: bool) -> None:
    from fedl2g.report.figures import draw_curves
    from fedl2g.runs.directory import RunDirectory

    run = RunDirectory(Path(result.run))
    figure = draw_curves({result.method: [run.history()]}, run.figures / "curves.png")
    if any(record.away for record in run.history()):
        from fedl2g.report.presence import draw_presence

        draw_presence(run.history(), run.about()["clients"], run.figures / "presence.png")
    if as_json:
        _print(json.dumps(result.to_dict()))
        return
    from fedl2g.report.tables import result_table

    _out().print(result_table(result))
    _print_profile(run)
    _print(f"figure: {figure}")


def _out() -> Console:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=140)  # a pipe or a file has room for whole tables


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
