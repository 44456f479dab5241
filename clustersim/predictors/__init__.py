"""`predict(kernels, gpu) -> seconds`, an array call; every predictor states its scope and its measured error."""

SHARED = (
    *("classes", "columns", "curriculum", "evaluate", "learned", "lessons", "mlp", "model"),
    *("checkouts", "measurements", "resume", "samples", "sheet", "sources", "store", "tables", "training"),
)
