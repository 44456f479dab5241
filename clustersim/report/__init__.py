"""Summaries, tables, the store, traces and terminal output: the only room that writes results."""
