"""Decisions of the rounds (commits, heads, voters), and the messages by which peers decide."""
