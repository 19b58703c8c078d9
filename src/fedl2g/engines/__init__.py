"""Engines: where clients live and how payloads reach them. Every engine gives the same numbers."""
