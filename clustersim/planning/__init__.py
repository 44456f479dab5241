"""Tokens, a deadline or a budget → how many nodes of which GPU, split how, for how many days, dollars and kWh."""
