"""hivemind's DHT, in a process of its own, and the directory of a run kept in it."""
