"""Which states others offer on a chain."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Head
from atom.training.state_sync.donors import Donors, Offer

_ASKED, _ASKED_AT_ONCE = 64, 8
"""Donors that are asked what they offer."""


def offers_on(heads: Sequence[Head], donors: Donors, peers: Sequence[str]) -> list[Offer]:
    """Each once, of those on the chain with these heads; whoever does not answer offers nothing.

    Raises: PeerRefused(SUPERSEDED): we end. Then nobody was heard out, and no answer means nothing.
    """
    with ThreadPoolExecutor(_ASKED_AT_ONCE, "atom-offers") as pool:
        told = pool.map(lambda peer: _offers_of(donors, peer), peers[:_ASKED])
        return list(
            {
                offer
                for offers in told
                for offer in offers
                if 0 <= offer.round < len(heads) and heads[offer.round].digest == offer.head
            }
        )


def _offers_of(donors: Donors, peer: str) -> list[Offer]:
    try:
        return donors.offers(peer)
    except PeerRefused as refused:
        if refused.reason is Reason.SUPERSEDED:
            raise
        return []
    except OSError:
        return []
