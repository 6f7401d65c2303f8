"""Atom: a peer daemon that trains large models on volunteers' machines."""

__version__ = "0.1.0"
