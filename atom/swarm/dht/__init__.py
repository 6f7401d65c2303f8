"""hivemind's DHT in a separate process, and the directory of a run on this or another store."""
