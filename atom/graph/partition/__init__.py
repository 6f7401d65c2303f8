"""Where to cut a model into sub-models: pure arithmetic over a chain of operations."""
