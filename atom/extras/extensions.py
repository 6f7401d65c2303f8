"""All that stands on top of a peer, for the command line to plug in."""

from collections.abc import Callable
from functools import partial

import torch

from atom.config.peer_file import PeerFile
from atom.daemon.extensions import Extensions, Wishes
from atom.extras.monitors.monitors import open_monitors
from atom.extras.owner.wishes import open_wishes
from atom.extras.turns.claims import neighbours
from atom.extras.turns.taking import machine_folder, open_turns


def all_extensions() -> Extensions:
    """Monitors, turns and the owner's wishes."""
    return Extensions(open_monitors, open_turns, _wishes)


def _wishes(
    peer: PeerFile,
    device: torch.device,
    told: Callable[[str], None],
    failed: Callable[[BaseException], None],
) -> Wishes:
    return open_wishes(peer, device, told, failed, partial(neighbours, machine_folder()))
