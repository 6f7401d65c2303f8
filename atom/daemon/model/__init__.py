"""A run's model and text as its files describe them: traced, named, given values, exported."""
