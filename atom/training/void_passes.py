"""Passes that counted for nothing, counted."""

from atom.swap.voided import Cause, PassVoided


class VoidPasses:
    """Since the process began. Written by the worker's thread, read by any."""

    def __init__(self) -> None:
        self.by_cause = {cause.value: 0 for cause in Cause}
        self.in_a_row = 0
        """The last ones; 0 once a pass has counted again."""
        self.last_cause = ""
        """Of the last of them; empty once a pass has counted again."""
        self._this_round = 0

    def add(self, void: PassVoided) -> int:
        """Returns how many there have been in a row, this one included."""
        self.by_cause[void.cause.value] += 1
        self._this_round += 1
        self.in_a_row += 1
        self.last_cause = void.cause.value
        return self.in_a_row

    def telling(self, void: PassVoided) -> str:
        """What to say of the pass just added, where every line is read by somebody; empty: nothing.

        Memory always: it changes what is done. Else the 1st, 2nd, 4th, 8th … of its cause.
        """
        count = self.by_cause[void.cause.value]
        if void.cause is not Cause.MEMORY and not worth_saying(count):
            return ""
        so_far = f" ({count} so far)" if count > 1 else ""
        return "; ".join(filter(None, (void.message + so_far, void.hint)))

    def sound(self) -> None:
        """A pass counted."""
        self.in_a_row = 0
        self.last_cause = ""

    def take_round(self) -> int:
        """Of the round that ends now."""
        count, self._this_round = self._this_round, 0
        return count


def worth_saying(in_a_row: int) -> bool:
    """The first, second, fourth, eighth …: if every pass is void, no log shall fill the disk."""
    return in_a_row & (in_a_row - 1) == 0
