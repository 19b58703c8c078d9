"""A page on this machine that follows runs as they go."""
