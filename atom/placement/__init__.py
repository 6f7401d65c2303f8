"""Plan how a device runs a model: cuts, what stays on the device, seconds of a pass. Pure."""
