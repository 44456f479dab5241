"""Predictors, one file or package each, named as in YAML, with `load(weights=None) -> Predictor`."""

ALIASES = {"neusight-paper": "neusight_paper"}
"""{name of a predictor in YAML: its module}, where they differ."""
