"""Runs on disk: run directories with metrics and checkpoints; starting, resuming and comparing runs."""
