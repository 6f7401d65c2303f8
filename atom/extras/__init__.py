"""Packages beside a peer: its page and its doctor. The daemon imports neither."""
