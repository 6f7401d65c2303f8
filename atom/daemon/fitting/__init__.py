"""How a run's model goes through this box's device: chosen, measured, cut, built."""
