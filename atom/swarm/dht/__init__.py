"""hivemind's DHT in a separate process, and the directory of a run that is stored in it."""
