"""Engines: where clients live and how payloads reach them. A run gives the same numbers on each."""
