"""Devices of rigs are closed after each test of this room."""

from engine_rig import surroundings

__all__ = ["surroundings"]
