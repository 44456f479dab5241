"""`predict(kernels, gpu) -> seconds`, an array call; every predictor states its scope and its measured error."""
