"""The command `fedl2g`: one module per group of commands; heavy imports (torch, pydantic) stay inside functions."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

import click

import fedl2g
from fedl2g.cli.catalog import explain_setting, list_datasets, list_methods, list_models
from fedl2g.cli.compare import compare_methods
from fedl2g.cli.completion import PROGRAM, VARIABLE, print_completion
from fedl2g.cli.data import data_group
from fedl2g.cli.deploy import deploy_group, export_model, predict_classes
from fedl2g.cli.groups import OrderedGroup
from fedl2g.cli.paper import paper_group
from fedl2g.cli.probe import probe_methods
from fedl2g.cli.report import draw_figure, write_page
from fedl2g.cli.run import resume_run, run_experiment
from fedl2g.cli.runs import list_runs, show_run
from fedl2g.cli.watch import watch_runs
from fedl2g.display import OneLine, visible
from fedl2g.errors import FedL2GError
from fedl2g.interrupts import EXIT_CODE, end_with_parent, two_step_interrupts


@click.group(cls=OrderedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fedl2g.__version__, message="%(version)s", help="Print the version.")
def app() -> None:
    """Heterogeneous federated learning: clients with different networks learn together by guiding vectors.

    Start with `fedl2g compare --rounds 60`, and look at the runs with `fedl2g list`. `fedl2g COMMAND -h` explains a
    command and its options.
    """


app.add_task("Train", run_experiment, resume_run, compare_methods)
app.add_task("Look at runs", list_runs, show_run, watch_runs)
app.add_task("Results", write_page, draw_figure, probe_methods, export_model, predict_classes)
app.add_task("What there is to choose", list_methods, list_models, list_datasets, explain_setting, data_group)
app.add_task("Institutions and the paper", deploy_group, paper_group)
app.add_task("Your shell", print_completion)


def main() -> NoReturn:
    """Run the command; a FedL2GError becomes one sentence on stderr and its exit code."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("fedl2g: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    sys.path.append(os.getcwd())  # so that "my_models:network" is found in the working directory
    end_with_parent()
    try:
        with two_step_interrupts():
            _run_command()
    except KeyboardInterrupt:  # before the command began, or after its end
        _fail("interrupted", EXIT_CODE)


def _run_command() -> NoReturn:
    try:
        code = app(prog_name=PROGRAM, complete_var=VARIABLE, standalone_mode=False)
    except FedL2GError as error:
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        _fail(_one_sentence(error), error.exit_code)
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            again = "; the same command goes on from the last checkpoint, if there is one" if _trains() else ""
            _fail(f"interrupted{again}", EXIT_CODE)
        _fail("nothing was started", 1)  # the user declined a prompt
    sys.exit(code if isinstance(code, int) else 0)


def _trains() -> bool:
    """Whether the command leaves runs that can be continued."""
    return sys.argv[1:2] in (["run"], ["resume"], ["compare"]) or sys.argv[1:3] == ["paper", "run"]


def _one_sentence(error: click.ClickException) -> str:
    """Click's error in our form: one sentence that ends with the command whose help says more."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return error.format_message()
    more = f"see `{error.ctx.command_path} -h`"
    if isinstance(error, click.NoSuchOption):
        return f"{error.option_name}: no such option; {_nearest(error.possibilities)}{more}"
    if isinstance(error, click.exceptions.NoSuchCommand):
        return f"{error.command_name}: no such command; {_nearest(error.possibilities)}{more}"
    message = error.message.rstrip(".")
    if isinstance(error, click.MissingParameter):
        message = "must be given"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{_name(error.param, error.ctx)}: {message}; {more}"
    return f"{message[:1].lower()}{message[1:]}; {more}"


def _nearest(names: list[str] | None) -> str:
    """The part of a sentence about an unknown name that suggests known ones."""
    return f"did you mean {' or '.join(names)}? " if names else ""


def _name(parameter: click.Parameter, context: click.Context) -> str:
    """How the user writes a parameter: --clients, RUN."""
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(context).strip("[].")
    return max(parameter.opts, key=len)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"fedl2g: {visible(message)}\n")
    sys.exit(code)
