"""YAML text → frozen, validated specs; every error says file:line:column, what is wrong and how to correct it."""
