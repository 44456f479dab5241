"""What machines are: GPU datasheets (`gpus/`) and nodes (`nodes/`)."""
