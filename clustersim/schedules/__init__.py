"""Pipeline schedules as data, in PyTorch's notation: proved before they run. Each named one is a file of `kinds/`."""
