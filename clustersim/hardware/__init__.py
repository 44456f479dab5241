"""Descriptions of machines: GPU datasheets (`gpus/`), nodes (`nodes/`) and physical constants."""
