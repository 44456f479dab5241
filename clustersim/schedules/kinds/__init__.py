"""Schedules, one per file, named in YAML as the file or by ALIASES. Its `build` is a `schedules.action.ScheduleKind`."""

ALIASES = {"1f1b": "one_f_one_b"}
