"""Predictors: `predict(kernels, gpu) -> seconds` in one array call. Each states its scope and its measured error."""
