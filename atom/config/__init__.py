"""Configuration: the run file (shared by the whole swarm) and the peer file (one machine's own)."""
