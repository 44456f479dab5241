"""Pipeline schedules as data in PyTorch's notation, proved by tests or before they run; `kinds/` has a file for each."""
