"""All connections of a peer: how it reaches other peers, and limits on their use of it."""
