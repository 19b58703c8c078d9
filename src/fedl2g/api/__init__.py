"""The Python interface: data, networks, runs and comparisons for scripts and notebooks."""
