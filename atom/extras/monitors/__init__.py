"""Receivers of a daemon's events besides its log."""
