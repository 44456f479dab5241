"""The best of very many splits, each of which is held against a proved lower bound before it is simulated."""
