"""What is done to uploads before they leave a client: the paper's noise, clipping, differential privacy; accounting."""
