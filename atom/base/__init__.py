"""Foundation of all packages: errors, refusal reasons, clocks, events, files, units.

Imports no other package of Atom.
"""

__version__ = "0.2.0"
