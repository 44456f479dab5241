"""How each predictor learns: a file of its name with `train(data, seed, progress, scratch) -> Weights`, and nothing else."""

ALIASES = {"neusight-paper": "neusight_paper"}
