"""Who else hears of a daemon's events than its log."""
