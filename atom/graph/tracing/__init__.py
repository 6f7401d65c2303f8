"""From a module to a flat graph, with the silent traps of tracing closed."""
