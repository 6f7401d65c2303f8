"""What a swarm agrees on (the run file) and what one box gives (the peer file)."""
