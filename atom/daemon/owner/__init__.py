"""What a daemon's owner asks of it while it runs: to pause, to give more or less."""
