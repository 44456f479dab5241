"""`predict(kernels, gpu) -> seconds`, an array call; every predictor states its scope and its measured error."""

SHARED = ("columns", "errors", "evaluate", "mlp", "model", "store", "tables", "training")
