"""`fedl2g deploy` and `fedl2g export`: set up a federation of institutions, check a site, export a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click

from fedl2g.cli.groups import OrderedGroup
from fedl2g.cli.operate import make_certificates, register_site, run_federation, show_health, stop_federation
from fedl2g.cli.options import PATH, metrics_option, trust_option
from fedl2g.cli.output import Printed, print_line
from fedl2g.deploy.targets import TARGETS, Target
from fedl2g.errors import SettingError
from fedl2g.schema import KINDS, Kind, Schema


@click.group("deploy", cls=OrderedGroup)
def deploy_group() -> None:
    """Set up a federation of institutions on Flower."""


@deploy_group.command("new")
@click.argument("folder", type=PATH, help="The folder to write.")
@click.option("--site", "sites", multiple=True, required=True, help="Name of a site; repeat for each institution.")
@click.option("--class", "classes", multiple=True, required=True, help="Name of a class; repeat for each class.")
@click.option("--kind", type=click.Choice(KINDS), default="image", show_default=True, help="What a sample is.")
@click.option(
    "--shape",
    "--image-shape",
    "shape",
    help="The form of a sample: channels,height,width of images (3,64,64 if absent), channels,time of signals, or the "
    "most tokens of a text.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=VALUES",
    help="A column of a table: age=number, or its categories as in sex=f,m; repeat for each column.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Host name or address at which the sites reach the coordinator.",
)
@click.option("--port", type=int, default=8443, show_default=True, help="The port of the coordinator's SuperLink.")
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    default="systemd",
    show_default=True,
    help="What starts the SuperLink and the sites after a reboot: files for it are written too.",
)
def new_federation(
    folder: Path,
    sites: tuple[str, ...],
    classes: tuple[str, ...],
    kind: Kind,
    shape: str | None,
    columns: tuple[str, ...],
    host: str,
    port: int,
    target: Target,
) -> None:
    """Write the folders of a federation: the coordinator's and one for each site, to be copied to their machines."""
    from fedl2g.deploy.scaffold import Plan, scaffold

    written = scaffold(Plan(folder, sites, classes, _inputs(kind, shape, columns), host, port, target))
    print_line(f"wrote {len(written)} files to {folder}; next steps: {folder / 'README.md'}")
    print_line(f"copy {folder / 'coordinator'} to the coordinator's machine, and each of these folders to its site:")
    for site in sites:
        print_line(f"  {folder / 'sites' / site}")
    print_line("each site makes its own key; exchange only its public half, node_key.pub, and the coordinator's ca.crt")


def _inputs(kind: Kind, shape: str | None, columns: tuple[str, ...]) -> Schema:
    """The form of a sample, from the options."""
    if (kind == "table") != bool(columns) or (kind == "table" and shape):
        raise SettingError(
            f"--column: does not fit the kind {kind}; a table needs its columns and no --shape, such as --column "
            "age=number --column sex=f,m; other kinds have no columns"
        )
    if columns:
        pairs = [column.partition("=")[::2] for column in columns]
        if len({name for name, _ in pairs}) < len(pairs) or not all(name and meaning for name, meaning in pairs):
            raise SettingError(
                "--column: not of the form NAME=number or NAME=CATEGORY,CATEGORY, or a name twice; expected each "
                "column once, such as --column age=number --column sex=f,m"
            )
        meanings = {name: meaning if meaning == "number" else meaning.split(",") for name, meaning in pairs}
        return _schema(columns[0], kind="table", columns=meanings)
    if shape is None and kind == "signal":
        raise SettingError("--shape: missing; expected channels,time of the signals, such as --shape 9,128")
    from fedl2g.datasets.text import MAX_TOKENS

    text = shape or {"image": "3,64,64", "text": str(MAX_TOKENS)}[kind]
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise SettingError(f"--shape: {text!r} is not a shape; expected whole numbers, such as 1,28,28")
    return _schema(text, kind=kind, shape=[int(part) for part in text.split(",")])


def _schema(given: str, **values: Any) -> Schema:
    try:
        return Schema.from_json(values)
    except ValueError as error:
        raise SettingError(f"{given}: {error}") from error


@deploy_group.command("key")
@click.argument(
    "path", type=PATH, help="A site's folder or site.toml, which names its key; or the private key to write."
)
def make_key(path: Path) -> None:
    """Make a node's key pair, where it will be used: the private key never leaves this machine."""
    from fedl2g.deploy.keys import write_key_pair
    from fedl2g.deploy.site_file import key_file

    private = key_file(path)
    public = write_key_pair(private)
    print_line(f"wrote {private}; it stays here: keep it secret, and copy it nowhere")
    print_line(f"wrote {public}; send it to the coordinator")


@deploy_group.command("bind")
@click.argument("key", type=PATH, help="The site's public key, node_key.pub.")
@click.argument("site", help="The site's name in the coordinator's experiment.toml.")
@click.option("--coordinator", type=PATH, required=True, help="The folder of the coordinator's experiment.toml.")
def bind_key(key: Path, site: str, coordinator: Path) -> None:
    """Bind a site's public key to its client number: no other key may answer for it."""
    from fedl2g.deploy.registered import bind_key

    print_line(f"bound {key} to {site} in {bind_key(key, site, coordinator)}")


@deploy_group.command("check")
@click.argument("path", type=PATH, help="A site's folder or site.toml; or the coordinator's folder.")
@click.option(
    "--experiment",
    type=PATH,
    help="For a site: the coordinator's experiment.toml, if it is not beside site.toml. For a coordinator: a file "
    "other than the folder's experiment.toml.",
)
@click.option("--name", default="first", show_default=True, help="For a coordinator: the run to be started.")
@click.option("--offline", is_flag=True, help="For a site: do not try to reach the coordinator.")
@trust_option
@click.pass_context
def check_folder(
    context: click.Context, path: Path, experiment: Path | None, name: str, offline: bool, trust: bool
) -> None:
    """Check a site before it joins, or the coordinator before a run: one line per check."""
    from fedl2g.deploy.check import check_site
    from fedl2g.deploy.check_coordinator import EXPERIMENT, check_coordinator
    from fedl2g.deploy.site_file import SITE_FILE
    from fedl2g.engines.flower import require_flower

    require_flower()
    if path.name == EXPERIMENT and path.is_file():
        path = path.parent
    if (path / EXPERIMENT).is_file() and not (path / SITE_FILE).is_file():
        verdicts = check_coordinator(path, name, experiment)
    else:
        site = path / SITE_FILE if path.is_dir() else path
        beside = site.with_name(EXPERIMENT)
        if experiment is None and not beside.is_file():
            raise SettingError(
                f"--experiment: missing; expected the coordinator's experiment.toml, or a copy of it beside {site}"
            )
        verdicts = check_site(site, experiment or beside, offline=offline, trust=trust)
    good = True
    for verdict in verdicts:
        good &= verdict.good
        print_line(verdict.line)
    if not good:
        context.exit(1)


@deploy_group.command("pin")
@click.argument("site", type=PATH, help="The site's folder or site.toml.")
@click.option("--print", "shown", is_flag=True, help="Print the table for site.toml instead of writing it.")
def pin_package(site: Path, shown: bool) -> None:
    """Pin the installed fedl2g in a site's file: the site then runs this package and no other."""
    from fedl2g.deploy.package import installed_package, pin_package, pin_table
    from fedl2g.deploy.site_file import SITE_FILE

    if shown:
        print_line(pin_table(installed_package()))
        return
    if site.is_dir():
        site = site / SITE_FILE
    pinned = pin_package(site)
    print_line(f"pinned fedl2g {pinned.version}, {pinned.digest}, in {site}")


@deploy_group.command("site")
@click.argument("site", type=PATH, help="The site's file, site.toml.")
def run_site(site: Path) -> None:
    """Join the federation as a site, until it is stopped. Only the site's own package runs, within its limits."""
    from fedl2g.engines.flower import require_flower

    require_flower()
    from fedl2g.deploy.site import run_site

    run_site(site)


@deploy_group.command("practice")
@click.argument("folder", type=PATH, help="The folder that `deploy new` wrote.")
def write_practice_images(folder: Path) -> None:
    """Fill the sites' data folders with images of digits, to practise on one machine."""
    from fedl2g.deploy.practice import write_practice_data

    print_line(f"wrote {write_practice_data(folder)} images of digits to the data folders of {folder / 'sites'}")


for command in (make_certificates, register_site, run_federation, stop_federation, show_health):
    deploy_group.add_command(command)


@click.command("export")
@click.argument("source", type=PATH, help="A site's file (site.toml), or a run directory with --client.")
@click.option("-o", "--out", type=PATH, required=True, help="The folder to write the model into.")
@click.option("--client", type=int, help="Which client of a run directory.")
@click.option(
    "--which",
    type=click.Choice(("best", "last")),
    default="best",
    show_default=True,
    help="The model after the best round or after the last one.",
)
@click.option("--run", help="Which run of a site, if it took part in several.")
@metrics_option
@click.option("--force", is_flag=True, help="Replace a model that is already in the folder.")
@trust_option
def export_model(
    source: Path,
    out: Path,
    client: int | None,
    which: Literal["best", "last"],
    run: str | None,
    metrics: tuple[str, ...],
    force: bool,
    trust: bool,
) -> None:
    """Export a client's trained model: weights (safetensors) and programs for torch and ONNX."""
    from fedl2g.deploy.export import export_client, export_site
    from fedl2g.runs.layout import is_run

    if out.is_dir() and any(out.iterdir()) and not force:
        raise SettingError(f"--out: {out} is not empty; choose another folder, or replace its model with --force")
    if source.is_dir():
        if not is_run(source):
            raise SettingError(
                f"{source}: not a run directory (it has no run.json); expected a run directory or a site's site.toml"
            )
        if client is None:
            raise SettingError(
                f"--client: missing; {source} is a run directory; name the client, for example --client 0"
            )
        exported = export_client(source, client, out, which=which, metrics=metrics, trust=trust)
    else:
        exported = export_site(source, out, which=which, run=run, metrics=metrics, trust=trust)
    print_line(exported.summary)
    print_line(f"wrote {', '.join(map(str, exported.files))}")


@click.command("predict")
@click.argument("model", type=PATH, help="A folder that `fedl2g export` wrote.")
@click.argument(
    "source",
    metavar="INPUT",
    type=PATH,
    help="What the model takes: images (a folder, a file), a table (.csv, .parquet), texts (.txt, .csv, .parquet), or "
    "an array of any kind (.npy, .npz).",
)
@click.option("-o", "--out", type=PATH, help="The CSV file to write instead of printing.")
@click.option(
    "--text", help="The columns of a table that hold the texts, separated by commas; as in training if absent."
)
@click.option(
    "--trust", is_flag=True, help="Run the model's torch program, which can hold any code, instead of the ONNX one."
)
def predict_classes(model: Path, source: Path, out: Path | None, text: str | None, trust: bool) -> None:
    """Predict the classes of samples with an exported model, as CSV: the predicted class and the score of each one."""
    from fedl2g.datasets.tables import listed
    from fedl2g.deploy.predict import open_model, predict, write_csv
    from fedl2g.files import reason_of, replacing
    from fedl2g.schema import PLURALS

    opened = open_model(model, trust=trust)
    if text is not None:
        opened = replace(opened, form=replace(opened.form, text=listed(text)))
    if out is None:
        write_csv(opened, predict(opened, source), Printed())
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            count = write_csv(opened, predict(opened, source), file)
    except OSError as error:
        raise SettingError(f"--out: {out} cannot be written ({reason_of(error)}); choose another file") from error
    print_line(f"wrote the classes of {count} {PLURALS[opened.form.inputs.kind]} to {out}")
