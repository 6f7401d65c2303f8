"""Commands that plan a run, start a daemon, or serve a bootstrap node."""
