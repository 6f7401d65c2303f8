"""What of a run lies on disk, and what of it others may fetch."""
