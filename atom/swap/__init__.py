"""Sub-models through the device: schedule, host memory, slots, streams, and the engine."""
