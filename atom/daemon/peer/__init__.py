"""One peer of a run: let in, wired, running, ended."""
