"""One round of the swarm as a pure state machine: events and the time in, actions out.

`vocabulary` names the events and actions, `slots` is the acceptor's memory, `electorate` says who
may decide now, `attempt` is a coordinator's notebook, `member` and `coordinator` are the two parts
a replica plays, `machine` is the door.
"""

from atom.training.round.machine import RoundMachine
from atom.training.round.terms import Patience, Terms

__all__ = ["Patience", "RoundMachine", "Terms"]
