"""Pipeline schedules as data in PyTorch's notation, proved legal by tests or before they run. `kinds/` has one per file."""
