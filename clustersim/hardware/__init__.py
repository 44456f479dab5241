"""What machines are: GPU datasheets (`gpus/`), nodes (`nodes/`) and physical constants."""
