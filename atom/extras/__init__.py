"""Rooms on top of a peer: each has one entry point, and the core imports none of them."""
