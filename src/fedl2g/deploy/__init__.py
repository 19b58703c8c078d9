"""A federation of institutions: its files, the Flower apps that run at the coordinator and at each site, and checks."""
