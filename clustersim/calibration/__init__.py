"""What a step's time rests on: the constants that nobody measured on this machine, their spread, and what they do to the step."""
