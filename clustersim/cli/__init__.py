"""The command line: parses, calls and prints. One file per command."""
