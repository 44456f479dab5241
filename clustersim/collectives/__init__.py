"""Algorithm → steps on chunks (for the proof) and phases on links (for the fabric); one file an algorithm."""

SHARED = ("exchange", "levels", "loads", "model", "nccl", "paths", "proof", "skew", "switched", "tree_steps")
