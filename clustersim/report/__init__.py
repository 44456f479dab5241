"""The only room that writes: summary, tables, store, trace, terminal."""
