"""`fedl2g watch`: a page on this machine that follows runs as they go."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import click

from fedl2g.cli.options import PATH, json_option, quiet_option, trust_option
from fedl2g.cli.output import print_json, print_line
from fedl2g.errors import SettingError


@click.command("watch")
@click.argument(
    "path",
    metavar="[RUN | COMPARISON | FOLDER | SITE]",
    type=PATH,
    default=Path("runs"),
    help="A run, a comparison, or any folder of runs, which may still be empty; runs/ if omitted. Or a site of a "
    "deployment (site.toml): its own records.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="The port of the page; 0: any free one."
)
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the page in a browser.")
@click.option("--once", metavar="FILE", type=PATH, help="Write the page as it is now to this HTML file, and end.")
@trust_option
@json_option
@quiet_option
def watch_runs(
    path: Path, port: int, browser: bool, once: Path | None, trust: bool, as_json: bool, quiet: bool
) -> None:
    """Follow runs on a page in your browser as they go; Ctrl-C ends the page, never a run.

    The page is served on 127.0.0.1 only, changes nothing, loads nothing from elsewhere, and opens only with the printed
    address.
    """
    from fedl2g.deploy.site_file import store_of

    if (store := store_of(path)) is not None:  # a site's own records
        if not store.is_dir():
            raise SettingError(f"{store}: this site has no records yet; they begin with its first round")
        path = store
    if not path.is_dir():
        found = "a file" if path.exists() else "no such folder"
        raise SettingError(
            f"{path}: {found}; expected a run, a comparison or a folder of runs, which may still be empty; `fedl2g "
            "list` shows the runs"
        )
    from fedl2g.watch.follower import Follower
    from fedl2g.watch.found import Watched

    follower = Follower(Watched(path, trust=trust))
    if once is not None:
        state = follower.state()
        if not state.runs:
            problems = state.problems or [f"{path}: no runs found; start one with `fedl2g run`"]
            raise SettingError("; ".join(problems))
        _write(state.page(), once)
        print_json({"page": str(once)}) if as_json else print_line(str(once))
        return
    from fedl2g.watch.serving import PageServer

    server = PageServer(follower, port)
    _lower_priority()

    def ready() -> None:
        if as_json:
            print_json({"address": server.address, "port": server.port})
        else:
            print_line(server.address)
        sys.stdout.flush()
        if not quiet:
            sys.stderr.write("fedl2g: the page follows the runs; Ctrl-C ends it\n")
        if browser and _has_screen():
            import webbrowser

            webbrowser.open(server.address)

    server.serve(ready)


def _write(text: str, output: Path) -> None:
    from fedl2g.files import reason_of, write_text

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, text, durable=False)
    except OSError as error:
        raise SettingError(f"{output}: cannot be written ({reason_of(error)}); choose another file") from error


def _lower_priority() -> None:
    """Let the runs on this machine go first: the page must not slow them down."""
    with contextlib.suppress(AttributeError, OSError):  # not on Windows
        os.nice(10)


def _has_screen() -> bool:
    """Whether a browser with windows can be opened: one that runs in the terminal would cover the output."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
