"""Measure kernels and training steps on the GPU of this machine, into the CSV that predictors learn from."""
