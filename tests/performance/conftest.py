"""Shared by the tests of speed and scale: tiny federations."""

from __future__ import annotations

from typing import Any

import pytest

import five_clients


@pytest.fixture(scope="session")
def tiny() -> Any:
    """Makes a federation of five clients on 160 digits."""
    return five_clients.tiny
