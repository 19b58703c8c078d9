"""The ClientApp of a deployment. A SuperNode starts a process per message, so torch is imported only when needed."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Literal

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedl2g.deploy.site_file import SiteFile, read_site
from fedl2g.errors import FedL2GError, SettingError

app = ClientApp()
_MB = 2**20


def _site(context: Context) -> SiteFile:
    path, client = context.node_config.get("site"), context.node_config.get("client-id")
    if not isinstance(path, str) or not isinstance(client, int):
        raise SettingError(
            "node-config: client-id or site is missing; start the SuperNode with --node-config "
            "'client-id=0 site=\"/path/to/site.toml\"'"
        )
    file = read_site(Path(path), trust=True)  # the institution itself started its SuperNode with this file
    if file.client_id != client:
        raise SettingError(f"{path}: belongs to client {file.client_id}; the SuperNode was started as client {client}")
    return file


@app.query()
def query(message: Message, context: Context) -> Message:
    """Report which client this node is."""
    # Not through `messages`, which imports torch: the query must be answered quickly.
    from flwr.app import ConfigRecord

    try:
        record = {"identity": ConfigRecord({"client": _site(context).client_id})}
    except FedL2GError as error:
        record = {"refusal": ConfigRecord({"kind": type(error).__name__, "message": str(error)})}
    return Message(RecordDict(record), reply_to=message)  # type: ignore[arg-type]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train in a round, or return the stored reply."""
    return _answer(message, context, "train")


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on the site's own test set."""
    return _answer(message, context, "evaluate")


@app.evaluate("keep")
def keep_best(message: Message, context: Context) -> Message:
    """Keep the model of the best round: the run is over."""
    return _answer(message, context, "keep")


def _answer(message: Message, context: Context, what: Literal["train", "evaluate", "keep"]) -> Message:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from fedl2g.deploy.own_site import make_node
    from fedl2g.engines.flower import messages

    logging.basicConfig(level=logging.INFO)
    try:
        file = _site(context)
        request = messages.unpack_request(message.content, int(file.maximum_request_mb * _MB))
        node = make_node(file, request)
        if what == "train":
            records = messages.pack_reply(request.run, request.round, node.train(request))
        elif what == "evaluate":
            records = messages.pack_evaluation(request.run, request.round, node.evaluate(request))
        else:
            records = messages.pack_kept(request.run, request.round, node.keep_best(request))
    except FedL2GError as error:
        records = messages.pack_refusal(error)
    return Message(records, reply_to=message)
