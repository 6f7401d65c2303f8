"""From the state a peer has to the newest one: from its own disk, from others."""
