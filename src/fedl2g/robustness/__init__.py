"""Clients that fail, disappear or lie: robust aggregation, simulated attacks, simulated availability."""
