"""Published results, reproduced."""
