"""The only room that knows SimPy: programs, streams, fabric, folding, recorder."""
