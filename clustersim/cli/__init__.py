"""The command line: parses, calls, prints; nothing else. One file a command."""
