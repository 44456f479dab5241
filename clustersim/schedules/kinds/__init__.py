"""Schedules by their name in YAML: one file each, whose `build` is a `schedules.action.ScheduleKind`, and nothing else."""

ALIASES = {"1f1b": "one_f_one_b"}
