"""Leakage probes: class inference and sample membership inference from uploads."""
