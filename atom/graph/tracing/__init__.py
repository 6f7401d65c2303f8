"""Tracing of a module to a flat graph, with guards against silently wrong results."""
