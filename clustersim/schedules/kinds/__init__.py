"""Schedules by their name in YAML: one file each, `build(stages, microbatches, chunks) -> actions`, and nothing else.

`stages` counts pipeline ranks; with `chunks` model chunks a rank, global stage = chunk · stages + rank.
"""

ALIASES = {"1f1b": "one_f_one_b"}
