"""The mathematics of the privacy guarantee: the mechanism, and what it spends. Policies and stages use it."""
