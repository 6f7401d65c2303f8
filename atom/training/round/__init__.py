"""One round of the swarm as a pure state machine: events and the time in, actions out.

`events` names the events and actions, `round_state` is what the parts share and what binds this
process, `electorate` says who may decide now, `participant` and `coordinator` are the two parts a
replica plays, `election` and `faults` say when and with whom to try, `machine` is the door.
"""

from atom.training.round.machine import RoundMachine
from atom.training.round.round_state import RoundPatience, RoundTerms

__all__ = ["RoundMachine", "RoundPatience", "RoundTerms"]
