"""Receivers of a daemon's events, in addition to its log."""
