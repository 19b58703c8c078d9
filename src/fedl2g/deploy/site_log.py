"""The log of a site's processes, on standard error."""

from __future__ import annotations

import logging

from fedl2g.display import OneLine


def log_to_stderr() -> None:
    """Write what this package logs, with times."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("fedl2g")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
