"""From a cut graph to Python that people can read."""
