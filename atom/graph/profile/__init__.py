"""Seconds of a graph's layers and operations on a device, measured or assumed."""
