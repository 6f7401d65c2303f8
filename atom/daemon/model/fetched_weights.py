"""The weights of a run's newest certified state, fetched by somebody who takes no part in it.

Of a state only the weights' arenas are fetched. They lie in the user's cache: a second call at the
same round fetches nothing, one that was interrupted goes on, and what no step changes is fetched
once.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from atom.base.errors import AddressError, PeerRefused
from atom.config.places import base_folder
from atom.config.run_file import RunFile
from atom.daemon.model.kept_run import HeldWeights
from atom.daemon.model.recipe import PRECISIONS
from atom.daemon.model.run_optimizer import shared_state
from atom.graph.ir import ParameterLayout
from atom.swap.host_store import FROZEN
from atom.swap.state_form import WEIGHTS
from atom.swarm.records.manifest import Manifest, manifest_digest
from atom.swarm.state.fetch import Watch
from atom.swarm.transport.transport import Transport
from atom.training.state_sync import PeerDonors

MOST_ASKED = 16
"""Peers that are asked which states they offer."""


def fetch_weights(
    manifest: Manifest,
    run: RunFile,
    layout: ParameterLayout,
    states: Mapping[bytes, tuple[int, bytes]],
    peers: Sequence[str],
    transport: Transport,
    progress: Callable[[int, int], None],
) -> tuple[int, HeldWeights]:
    """The newest state's weights, and its round.

    Args:
        states: those that may be taken, as `Ledger.states` has them.
        peers: who is alive.
        progress: hears of bytes in place, and in all.

    Raises: AddressError if nobody gives them; StorageError.
    """
    arenas, folder = shared_state(run, layout), cached_folder(manifest)
    size_bytes = sum(arena.size_bytes for arena in arenas.values())
    donors = PeerDonors(transport, 0, size_bytes, folder / "states", Watch(progress))
    try:
        head, holders = newest_offered(states, peers, donors.offers)
        round_number, digest = states[head]
        donors.keep_only([head])
        found = donors.state(head, holders, digest, frozenset(WEIGHTS))
        still = None
        if manifest.frozen_digest:
            elements = layout.total_elements - layout.trained_elements
            size_bytes = elements * PRECISIONS[run.model.precision].itemsize
            base = PeerDonors(transport, 0, 0, folder, Watch(progress))
            still = base.frozen(peers, manifest.frozen_digest, size_bytes)[FROZEN]
    except (PeerRefused, OSError) as problem:
        raise AddressError(
            f"no peer gives the state: {problem}", "try again in a moment: what came is kept"
        ) from problem
    return round_number, HeldWeights(layout, found, still)


def newest_offered(
    states: Mapping[bytes, tuple[int, bytes]],
    peers: Sequence[str],
    offers: Callable[[str], set[bytes]],
) -> tuple[bytes, list[str]]:
    """The head of the newest state that somebody offers and a commit vouches for, and who does.
    Raises: AddressError if nobody offers any of `states`."""
    holders, problem = defaultdict[bytes, list[str]](list), "none has one yet"
    for peer in peers[:MOST_ASKED]:
        try:
            for head in offers(peer) & states.keys():
                holders[head].append(peer)
        except (PeerRefused, OSError) as refused:
            problem = str(refused)
    if not holders:
        raise AddressError(
            f"no peer offers a state that the run's voters vouch for: {problem}",
            "they do after [snapshot] every_rounds of the run: try again later",
        )
    head = max(holders, key=lambda each: states[each][0])
    return head, holders[head]


def cached_folder(manifest: Manifest) -> Path:
    """Where what was fetched of the run is kept."""
    return base_folder("cache") / "sampled" / manifest_digest(manifest).hex()[:16]
