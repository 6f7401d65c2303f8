"""All that stands on top of a peer, for the command line to plug in."""

from functools import partial

from atom.daemon.extensions import Extensions
from atom.extras.monitors.monitors import open_monitors
from atom.extras.owner.wishes import open_wishes
from atom.extras.turns.claims import neighbours
from atom.extras.turns.taking import machine_folder, open_turns


def all_extensions() -> Extensions:
    """Monitors, turns and the owner's wishes."""
    wishes = partial(open_wishes, neighbours=lambda: neighbours(machine_folder()))
    return Extensions(open_monitors, open_turns, wishes)
