"""Files of a run on this peer's disk, and the part of them that other peers may fetch."""
