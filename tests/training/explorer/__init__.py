"""Every order of events of a few real round machines, searched breadth first within bounds.

The machines are `atom.training.round.RoundMachine` itself. One voter may lie: it sends any message
of a finite alphabet to any peer at any time. `actors.py` builds everything that is signed or
certified, so a change of the chain's values is a change of that file.
"""
