"""How predictors learn from measured kernels."""
