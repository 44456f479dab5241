"""Several jobs at once on one cluster: who gets which nodes, each alone, and all together."""
