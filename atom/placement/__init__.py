"""How a model goes through a device: where it is cut, what stays, how long a pass takes. Pure."""
