"""The all-reduce: who sits where, what travels when, what is added, who is blamed."""
