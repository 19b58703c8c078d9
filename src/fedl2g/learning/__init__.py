"""How a client learns: its network and data, the training loop, losses, the optimizer, the guiding gradient."""
