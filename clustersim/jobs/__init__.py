"""Several jobs at once on one cluster: the nodes of each, each alone, and all together."""
