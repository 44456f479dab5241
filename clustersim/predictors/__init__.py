"""`predict(kernels, gpu) -> seconds`, an array call; every predictor states its scope and its measured error."""

SHARED = (
    *("classes", "columns", "curriculum", "evaluate", "learned", "lessons", "mlp", "model"),
    *("samples", "store", "tables", "training"),
)
ALIASES = {"neusight-paper": "neusight_paper"}
