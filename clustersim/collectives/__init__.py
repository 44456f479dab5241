"""Algorithm → steps on chunks (for the proof) and phases on links (for the fabric); one file an algorithm in `algorithms/`."""
