"""Everyone sends to everyone: the bytes on links without a way for each of the n² pairs."""
