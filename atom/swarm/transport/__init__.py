"""All connections of a peer: the ways to others, and what others may take of it."""
