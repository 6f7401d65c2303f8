"""What every room may use: errors, reasons, clocks, events, units. Imports nothing of Atom."""
