"""One model on one box: passes, steps, the thread that owns them. Knows no peers."""
