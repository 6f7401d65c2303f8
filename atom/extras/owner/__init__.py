"""Conditions of this machine's owner for work, compared with observations of the machine."""
