"""Decides how a model goes through a device, and says what that will give. Pure, but for clocks."""
