"""Optional packages on top of a peer. Each has one entry point; the core imports none of them."""
