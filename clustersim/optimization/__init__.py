"""Search for the best of very many splits, each compared with a proved lower bound before it is simulated."""
