"""The paper's tables and figures as data: settings, its numbers, and ours beside them."""
