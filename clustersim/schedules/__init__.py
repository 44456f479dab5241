"""`build(stages, microbatches, chunks) -> actions`, one file a schedule, in PyTorch's notation.

`stages` counts pipeline ranks; with `chunks` model chunks a rank, global stage = chunk · stages + rank.
"""

SHARED = ("action", "check", "draw", "order", "play")
ALIASES = {"1f1b": "one_f_one_b"}
