"""Measures kernels and training steps on this machine's GPU, for CSV files that predictors learn from."""
