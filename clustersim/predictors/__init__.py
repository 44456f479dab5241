"""`predict(kernels, gpu) -> seconds`, an array call; every predictor states its scope and its measured error."""

SHARED = (
    *("classes", "clocks", "columns", "curriculum", "evaluate", "learned", "lessons", "mlp", "model"),
    *("published", "samples", "store", "tables", "training"),
)
