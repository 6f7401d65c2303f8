"""What rounds agreed on: commits, heads, voters; and the messages in which they agree."""
