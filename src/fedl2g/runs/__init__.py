"""Runs: a directory per run with its records and checkpoints, and what makes, resumes and compares them."""
