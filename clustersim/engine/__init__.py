"""Execution of a step: programs, streams, fabric, folding, recorder. The only room that uses SimPy."""
