"""Training of predictors on measured kernels."""
