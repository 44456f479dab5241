"""`build(stages, microbatches, chunks) -> actions`, one file a schedule, in PyTorch's notation."""

SHARED = ("action", "check", "draw")
ALIASES = {"1f1b": "one_f_one_b"}
