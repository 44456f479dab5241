"""How each kind of kernel is run: `build(case, device)` makes operands and returns the launch. One file a kind."""
