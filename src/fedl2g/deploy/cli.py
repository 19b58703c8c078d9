"""`fedl2g deploy`: set up a federation of institutions and verify a site before it joins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedl2g.errors import SettingError
from fedl2g.report.cli import Trust

deploy_app = typer.Typer(no_args_is_help=True, help="Set up a federation of institutions on Flower.")


@deploy_app.command("new")
def new(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    site: Annotated[list[str], typer.Option("--site", help="A site's name; give one for each institution.")],
    classes: Annotated[list[str], typer.Option("--class", help="A class's name; give one for each class.")],
    image_shape: Annotated[str, typer.Option(help="channels,height,width of the images")] = "3,64,64",
    host: Annotated[str, typer.Option(help="The coordinator's name or address, as the sites reach it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port of the coordinator's SuperLink.")] = 8443,
) -> None:
    """Scaffold a federation: a Flower app, the coordinator's files, and a folder for each site."""
    from fedl2g.deploy.scaffold import Plan, scaffold

    parts = image_shape.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
        raise SettingError(f"--image-shape {image_shape!r} is not of the form channels,height,width, such as 1,28,28")
    channels, height, width = map(int, parts)
    written = scaffold(Plan(folder, tuple(site), tuple(classes), (channels, height, width), host, port))
    typer.echo(f"wrote {len(written)} files in {folder}; {folder / 'README.md'} says what to do with them")


@deploy_app.command("key")
def key(path: Annotated[Path, typer.Argument(help="The private key to write; PATH.pub is the public one.")]) -> None:
    """Make a node's key pair."""
    from fedl2g.deploy.keys import write_key_pair

    typer.echo(f"wrote {path} (keep it) and {write_key_pair(path)} (send it to the coordinator)")


@deploy_app.command("check")
def check(
    site: Annotated[Path, typer.Argument(help="The site's file, site.toml.")],
    experiment: Annotated[Path, typer.Option("--experiment", help="The coordinator's file, experiment.toml.")],
    offline: Annotated[bool, typer.Option("--offline", help="Do not try to reach the coordinator.")] = False,
    trust: Trust = False,
) -> None:
    """Verify a site before it joins: a plain verdict on each line."""
    from fedl2g.deploy.check import check_site
    from fedl2g.engines.flower import require_flower

    require_flower()
    good = True
    for verdict in check_site(site, experiment, offline=offline, trust=trust):
        good &= verdict.good
        typer.echo(f"{'ok  ' if verdict.good else 'FAIL'}  {verdict.what}: {verdict.detail}")
    if not good:
        raise typer.Exit(1)


@deploy_app.command("practice")
def practice(folder: Annotated[Path, typer.Argument(help="The folder that `deploy new` wrote.")]) -> None:
    """Fill the sites' data folders with pictures of digits, to practise on one machine."""
    from fedl2g.deploy.practice import write_practice_data

    typer.echo(f"wrote {write_practice_data(folder)} pictures of digits into the data folders of {folder / 'sites'}")


def export(
    source: Annotated[Path, typer.Argument(help="A site's file (site.toml), or a run directory with --client.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write the model into.")],
    client: Annotated[int | None, typer.Option("--client", help="Which client of a run directory.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Which run of a site, when it took part in several.")] = None,
    trust: Trust = False,
) -> None:
    """Write a client's trained model for use elsewhere: weights (safetensors) and a program that predicts."""
    from fedl2g.deploy.export import export_client, export_site

    if source.is_dir():
        if client is None:
            raise SettingError(f"{source} is a run directory: name the client with --client 0")
        written = export_client(source, client, out, trust=trust)
    else:
        written = export_site(source, out, run=run, trust=trust)
    typer.echo(f"wrote {', '.join(str(path) for path in written)}")
