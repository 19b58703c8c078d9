"""Everything that determines a run: one frozen, validated model, its files, its identity and its explanations."""

from fedl2g.experiment.settings import Execution, Experiment, documented_fields, explain, overlay, parse_override

__all__ = ["Execution", "Experiment", "documented_fields", "explain", "overlay", "parse_override"]
