"""Heterogeneous federated learning by guiding vectors."""

__version__ = "0.1.0"
