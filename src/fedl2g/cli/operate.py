"""`fedl2g deploy run` and the other commands of the coordinator."""

from __future__ import annotations

from pathlib import Path

import click

from fedl2g.cli.options import PATH, json_option, quiet_option
from fedl2g.cli.output import Display, print_json, print_line
from fedl2g.errors import SettingError

COORDINATOR = Path("coordinator")
coordinator_argument = click.argument(
    "coordinator", type=PATH, default=COORDINATOR, metavar="[COORDINATOR]", help="The coordinator's folder."
)
name_option = click.option("--name", default="first", show_default=True, help="The run's name: its folder below runs/.")


@click.command("run")
@coordinator_argument
@name_option
@click.option("--experiment", type=PATH, help="The file of the experiment, if it is not the folder's experiment.toml.")
@click.option("--detach", is_flag=True, help="Do not follow the run; end as soon as it has started.")
@json_option
@quiet_option
def run_federation(
    coordinator: Path, name: str, experiment: Path | None, detach: bool, as_json: bool, quiet: bool
) -> None:
    """Check the coordinator, start a run or continue it, follow it, and end with its result and its exit code.

    Ctrl-C stops following the run, not the run itself; the same command follows it again. Another --name starts
    another run.
    """
    _require_folder(coordinator)
    from fedl2g.cli.run import show_result
    from fedl2g.deploy.check_coordinator import check_coordinator
    from fedl2g.deploy.operate import follow, running, start_run

    with Display(quiet) as display:
        started = running(coordinator, name)
        if started is None:
            verdicts = []
            for verdict in check_coordinator(coordinator, name, experiment, start=True):
                verdicts.append(verdict)
                display.print(verdict.line)
            if wrong := [verdict for verdict in verdicts if not verdict.good]:
                problems = "\n".join(f"{verdict.what}: {verdict.detail}" for verdict in wrong)
                raise SettingError(
                    f"not started\n{problems}" if len(wrong) > 1 or quiet else f"not started; {problems}"
                )
            started = start_run(coordinator, name, experiment)
            display.print(f"started {started.path}; its log is {started.path / 'log.txt'}")
        else:
            display.print(f"{started.path} is running; following it")
        if detach:
            print_json({"run": str(started.path)}) if as_json else print_line(str(started.path))
            return
        directory = follow(coordinator, started, display.console)
    result = directory.result()
    if result is None:
        raise SettingError(f"{directory.path}: ended without a result; see its log.txt")
    show_result(result, (), as_json)


@click.command("stop")
@coordinator_argument
@name_option
def stop_federation(coordinator: Path, name: str) -> None:
    """Stop a run after its last complete round; `fedl2g deploy run` continues it."""
    _require_folder(coordinator)
    from fedl2g.deploy.operate import stop_run

    print_line(stop_run(coordinator, name))


@click.command("register")
@click.argument("key", type=PATH, help="The site's public key, node_key.pub.")
@click.argument("site", help="The site's name in the coordinator's experiment.toml.")
@click.option("--coordinator", type=PATH, default=COORDINATOR, show_default=True, help="The coordinator's folder.")
def register_site(key: Path, site: str, coordinator: Path) -> None:
    """Admit a site: bind its public key to its client number and register the key at the running SuperLink."""
    _require_folder(coordinator)
    from fedl2g.deploy.command import flower_command
    from fedl2g.deploy.registered import bind_key

    bound = bind_key(key, site, coordinator)
    flower_command(coordinator).register(key, site)
    print_line(f"registered {site}: only the node with the key {key} may join as {site} ({bound})")


@click.command("certificates")
@coordinator_argument
def make_certificates(coordinator: Path) -> None:
    """Make the authority and the SuperLink's certificate; later, renew the certificate by the same authority."""
    _require_folder(coordinator)
    from fedl2g.deploy.certificates import make_certificates
    from fedl2g.deploy.command import flower_command

    address = flower_command(coordinator).public_address
    made, new = make_certificates(coordinator / "certificates", address, coordinator.resolve().parent.name)
    print_line(f"wrote {made.server} and its key, for {address}; they stay here")
    if new:
        print_line(f"wrote {made.authority_key}; keep it offline: whoever has it can pose as the coordinator")
        print_line(f"wrote {made.authority}; every site needs a copy beside its site.toml")
    else:
        print_line(f"signed by {made.authority} as before; the sites keep their copies")


@click.command("health")
@click.argument("folder", type=PATH, help="The coordinator's folder, or a site's folder or site.toml.")
def show_health(folder: Path) -> None:
    """Say whether the coordinator's SuperLink answers, or a site is at work: for health checks of containers."""
    from fedl2g.deploy.health import health

    print_line(health(folder))


def _require_folder(coordinator: Path) -> None:
    if not (coordinator / "experiment.toml").is_file():
        raise SettingError(
            f"{coordinator}: not a coordinator's folder (it has no experiment.toml); expected the folder `coordinator` "
            "that `fedl2g deploy new` wrote"
        )
