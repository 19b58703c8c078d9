"""What clients do to their uploads before these leave: the paper's noise, clipping, differential privacy, accounting."""
