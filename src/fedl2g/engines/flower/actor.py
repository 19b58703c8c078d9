"""The ClientApp of every simulated node; each client's state is in its store."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedl2g.engines.flower import messages
from fedl2g.engines.flower.identity import pack_identity, pack_refusal
from fedl2g.engines.flower.messages import Request
from fedl2g.engines.flower.node import Node
from fedl2g.engines.flower.records import unwrap
from fedl2g.errors import FedL2GError
from fedl2g.files import write_text
from fedl2g.learning.devices import resolve_device
from fedl2g.setup import Setup

_LIMIT = 2**40  # bytes; effectively none, since broadcasts come from this machine
_SETUP_FILE = "setup.json"
_setups: dict[Path, Setup] = {}  # cache of the last setup: a process serves many messages of one run


def client_app(root: Path) -> ClientApp:
    """The app of every simulated node; the stores of all clients are below `root`."""
    app = ClientApp()
    app.query()(_identify)
    app.train()(partial(_answer, _train, root))
    app.evaluate()(partial(_answer, _evaluate, root))
    return app


def write_setup(folder: Path, setup: Setup) -> None:
    """Write a run's setup to its folder, for the processes that serve the nodes."""
    folder.mkdir(parents=True)
    write_text(folder / _SETUP_FILE, json.dumps(setup.describe()), durable=False)


def _read_setup(folder: Path) -> Setup:
    if folder not in _setups:
        setup = Setup.from_description(json.loads((folder / _SETUP_FILE).read_text(encoding="utf-8")))
        _setups.clear()
        _setups[folder] = setup
    return _setups[folder]


def _identify(message: Message, context: Context) -> Message:
    return Message(pack_identity(int(context.node_config["partition-id"])), reply_to=message)


def _answer(serve: Callable[[Node, Request], RecordDict], root: Path, message: Message, context: Context) -> Message:
    try:
        records = unwrap(message.content)
        setup = _read_setup(root / messages.unpack_run(records))  # first: it imports the user's plugins
        request = messages.unpack_request(records, _LIMIT, trust=True)  # the user's own experiment
        device = resolve_device(setup.experiment.device, int(context.node_config.get("worker", 0)))
        node = Node(int(context.node_config["partition-id"]), setup, device, root)
        return Message(serve(node, request), reply_to=message)
    except FedL2GError as error:
        refusal = pack_refusal(error)
    except Exception:  # a bug in a method: Flower would report a failed node, which would be retried
        refusal = pack_refusal(FedL2GError(traceback.format_exc()))
    return Message(refusal, reply_to=message)


def _train(node: Node, request: Request) -> RecordDict:
    reply = node.train(request)
    return messages.pack_trained(request.run, request.round, reply, node.evaluate_trained(request, reply))


def _evaluate(node: Node, request: Request) -> RecordDict:
    return messages.pack_evaluation(request.run, request.round, node.evaluate(request))
