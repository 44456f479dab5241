"""Many simulations: a space of splits, the legal points of it, a runner of processes, a ranked table."""
