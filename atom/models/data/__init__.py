"""Data pipeline from text to tokens to batches, equal on every peer. Importing needs only torch."""
