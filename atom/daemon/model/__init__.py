"""Model and text of a run: built from its files, traced, initialised, read from disk, exported."""
