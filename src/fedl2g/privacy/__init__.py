"""The mathematics of the privacy guarantee: the mechanism and its accounting."""
