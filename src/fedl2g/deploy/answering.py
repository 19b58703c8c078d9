"""A site's answer to one request: checked against the site's limits, served by its own package, model and data."""

from __future__ import annotations

import logging

from flwr.app import RecordDict

from fedl2g.deploy.baseline import start_baseline
from fedl2g.deploy.own_record import record_answer, record_request
from fedl2g.deploy.own_site import make_node
from fedl2g.deploy.site_file import SiteFile
from fedl2g.engines.flower import messages
from fedl2g.engines.flower.identity import pack_refusal
from fedl2g.engines.flower.strict import shown
from fedl2g.errors import FedL2GError, PayloadError

_log = logging.getLogger(__name__)


def answer(file: SiteFile, kind: str, records: RecordDict) -> RecordDict:
    """Serve a request, or refuse it; the refusal is logged here, and its reason sent to the coordinator."""
    try:
        return _serve(file, kind, records)
    except FedL2GError as error:
        _log.warning("refused: %s", error)
        return pack_refusal(error)
    except Exception as error:
        # The traceback stays here: it may show the site's code and data.
        _log.exception("a request failed")
        return pack_refusal(FedL2GError(f"site: its code failed ({type(error).__name__}); see the site's log"))


def _serve(file: SiteFile, kind: str, records: RecordDict) -> RecordDict:
    request = messages.unpack_request(records, file.limits.maximum_bytes)
    file.limits.check(request.experiment, request.inputs, len(request.classes))
    node = make_node(file, request)
    match kind:
        case "train":
            start_baseline(file, request.run)
            record_request(file, request, node.setup)
            reply = node.train(request)
            record_answer(file, request, node.setup, reply)
            evaluated = node.evaluate_trained(request, reply)
            if evaluated is not None:
                record_answer(file, request, node.setup, evaluated)
            return messages.pack_trained(request.run, request.round, reply, evaluated)
        case "evaluate":
            record_request(file, request, node.setup)
            evaluation = node.evaluate(request)
            record_answer(file, request, node.setup, evaluation)
            return messages.pack_evaluation(request.run, request.round, evaluation)
        case "evaluate.keep":
            kept = node.keep_best(request)
            record_answer(file, request, node.setup, None)
            return messages.pack_kept(request.run, request.round, kept)
    raise PayloadError(f"message: the kind {shown(kind)!r} is unknown; expected train, evaluate or evaluate.keep")
