"""`atom demo`: a swarm on one machine that loses a peer, wins another, and proves its result."""
