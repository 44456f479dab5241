"""Predictors, one file or package each, named as in YAML, with `load(weights=None) -> Predictor`."""
