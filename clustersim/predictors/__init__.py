"""`predict(kernels, gpu) -> seconds`, an array call; every predictor states its scope and its measured error."""

SHARED = (
    *(
        "calibration",
        "checkouts",
        "classes",
        "clocks",
        "columns",
        "curriculum",
        "evaluate",
        "frames",
        "intervals",
        "judged",
        "learned",
        "lessons",
        "margins",
        "measurements",
        "mlp",
    ),
    *(
        "model",
        "outside",
        "published",
        "report",
        "resume",
        "samples",
        "sheet",
        "sources",
        "store",
        "tables",
        "training",
    ),
)
ALIASES = {"neusight-paper": "neusight_paper"}
