"""`atom demo`: a swarm on one machine that loses a peer, gets a new one, and checks its result."""
