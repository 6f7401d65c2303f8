"""How fast a ring has to be, and how far a member of one that was too slow had got. Pure."""

from dataclasses import dataclass

Place = tuple[int, int]
"""A chunk of one ring: its step, counted over all buckets, and its first element."""


@dataclass(frozen=True)
class RingStanding:
    """One member's word on its place in the ring when it gave up."""

    lacks_step: int
    lacks_start: int
    unsent_step: int
    """The number of all steps if it has sent everything; `unsent_start` is 0 then."""
    unsent_start: int
    blocked: bool
    """It was in the middle of sending: its right neighbour took no more."""

    @property
    def lacks(self) -> Place:
        """The first chunk that has not come from the left."""
        return self.lacks_step, self.lacks_start

    @property
    def unsent(self) -> Place:
        """The first chunk that has not gone to the right."""
        return self.unsent_step, self.unsent_start

    def starves(self, members: int) -> bool:
        """Whether all it waited for was its left neighbour. The first step of a bucket needs
        nothing; any other sends on what came in the step before."""
        if self.unsent_step % (2 * (members - 1)) == 0:
            return self.unsent_start == 0 and self.unsent_step > 0  # it has sent everything
        return self.lacks <= (self.unsent_step - 1, self.unsent_start)


@dataclass(frozen=True)
class Pace:
    """The least that a ring must do: bytes per second on average, after some seconds to begin.

    Everybody's bytes depend on everybody else's, so all members fall behind this line together.
    """

    slack_s: float = 5.0
    bytes_per_s: float = 64 * 1024.0

    def due_s(self, done_bytes: int) -> float:
        """Seconds from the ring's start by which more than `done_bytes` have to be through."""
        return self.slack_s + done_bytes / self.bytes_per_s
