"""What every room may use: errors, reasons, clocks, events, units. Imports nothing of Atom."""

__version__ = "0.2.0"
