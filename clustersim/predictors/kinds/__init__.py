"""Predictors by their name in YAML: one file or folder each with `load(weights=None) -> Predictor`, and nothing else."""

ALIASES = {"neusight-paper": "neusight_paper"}
