"""Explanation of a step's time: its critical path, exact what-ifs, and differences between results."""
