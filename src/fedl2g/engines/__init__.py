"""Engines: where clients live and how payloads reach them. A run gives the same numbers on each."""

from fedl2g.engines.base import Absence, Engine, Evaluation, WorkerLost, open_engine

__all__ = ["Absence", "Engine", "Evaluation", "WorkerLost", "open_engine"]
