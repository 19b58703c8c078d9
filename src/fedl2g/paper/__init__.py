"""The paper's experiments: settings, printed numbers, and tables and figures with ours."""
