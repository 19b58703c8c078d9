"""The command `fedl2g`: one module per group of commands; heavy imports (torch, pydantic) stay inside functions."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import NoReturn

import click

import fedl2g
from fedl2g.cli.catalog import explain_setting, list_datasets, list_methods, list_models
from fedl2g.cli.compare import compare_methods
from fedl2g.cli.data import data_group
from fedl2g.cli.deploy import deploy_group, export_model
from fedl2g.cli.groups import OrderedGroup
from fedl2g.cli.paper import paper_group
from fedl2g.cli.probe import probe_methods
from fedl2g.cli.report import draw_figure, write_page
from fedl2g.cli.run import resume_run, run_experiment
from fedl2g.cli.runs import list_runs, show_run
from fedl2g.errors import FedL2GError


@click.group(cls=OrderedGroup)
@click.version_option(fedl2g.__version__, message="%(version)s", help="Print the version.")
def app() -> None:
    """Heterogeneous federated learning: clients with different networks learn together by guiding vectors."""


for command in (
    *(run_experiment, resume_run, compare_methods, probe_methods),
    *(list_runs, show_run, write_page, draw_figure, export_model),
    *(list_methods, list_models, list_datasets, explain_setting),
    *(data_group, deploy_group, paper_group),
):
    app.add_command(command)


def main() -> NoReturn:
    """Run the command; a FedL2GError becomes one sentence on stderr and its exit code."""
    logging.basicConfig(format="fedl2g: %(message)s", level=logging.WARNING, stream=sys.stderr)
    warnings.filterwarnings(
        "ignore", category=FutureWarning, module="torch"
    )  # from torch's internal use of torch.jit in the JVP
    sys.path.append(os.getcwd())  # so that "my_models:network" is found in the working directory
    try:
        code = app(standalone_mode=False)
    except FedL2GError as error:
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            _fail("interrupted; continue a run from its last checkpoint with `fedl2g resume RUN`", 130)
        _fail("nothing was started", 1)  # the user declined a prompt
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"fedl2g: {message}\n")
    sys.exit(code)
