"""One thread for each test of this room; devices of its rigs are closed."""

from engine_rig import surroundings

__all__ = ["surroundings"]
