"""Tokens and a deadline or budget → number of nodes, GPU type, split, days, dollars and kWh of a training run."""
