"""What a carrier remembers of its leaf's chunks in one ring."""

import threading
from collections.abc import Callable

from atom.swarm.exchange.geometry import Step
from atom.swarm.exchange.leaves import LeafPlan
from atom.swarm.stream.frames import Channel


class Carriage:
    """What carrier and leaf have to do with each other in one ring. `lock` is held by whoever puts
    a chunk's addends together."""

    def __init__(self, plan: LeafPlan, leaf: str, up: Channel, down: Channel) -> None:
        self.plan = plan
        self.leaf = leaf
        self.up, self.down = up, down
        self.lock = threading.Lock()
        self.brought = set[int]()
        """First elements of the chunks whose own part and leaf's stand in the result arena."""
        self.parked = dict[int, tuple[int, Step]]()
        """By first element: what came from the left and waits for the leaf's part."""
        self._expected = set[int]()
        self.given_back = False
        """Whether the leaf has all means, or what it lacks is its own loss."""
        self.cut_off = False
        """It took them too slowly."""

    def expect(self, start: int) -> Callable[[], bool]:
        """A connection begins this chunk's sum next; whether it can, as long as it is asked."""
        self._expected.add(start)
        return lambda: start in self.brought

    def holds_up(self) -> bool:
        """Whether the ring waits for the leaf; after it ended."""
        return bool(self._expected - self.brought or self.parked)
