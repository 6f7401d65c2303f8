"""Where DHT nodes were met: the way back to them. Pure."""

from collections.abc import Sequence

from atom.swarm.addresses import peer_id_in

_PLACES = 2


class Contacts:
    """Of each node the place where it was met last, and the one before: without a port of its own
    a peer has another one after each start, and whoever dialled us may show one where nobody
    listens. Multiaddrs, each ending in /p2p/<peer id>."""

    def __init__(self, kept: Sequence[str], named: Sequence[str], most: int) -> None:
        """`kept`: as `addresses` gave them in an earlier life. `named`: by people; those stay.
        `most`: nodes that are remembered beside them."""
        self._named, self._most = tuple(named), most
        self._places: dict[str, tuple[str, ...]] = {}
        """By peer id, who came to a new place last at the end."""
        for address in (*reversed(kept), *named):
            self.meet(peer_id_in(address), [address])

    def meet(self, peer_id: str, addresses: Sequence[str]) -> None:
        """That node is connected from there now."""
        before = self._places.get(peer_id, ())
        if not addresses or (before and before[0] in addresses):
            return
        now = addresses[0]
        self._places.pop(peer_id, None)
        others = (address for address in before if address != now)
        self._places[peer_id] = (now, *others)[:_PLACES]
        self._forget()

    def addresses(self) -> list[str]:
        """Newest first: where each was met last, where it was before, and those named."""
        newest = [places[0] for places in reversed(self._places.values())]
        older = [each for places in reversed(self._places.values()) for each in places[1:]]
        return list(dict.fromkeys((*newest, *older, *self._named)))

    def lost(self, known: set[str]) -> list[str]:
        """Addresses of nodes that are none of the `known`."""
        return [each for each in self.addresses() if peer_id_in(each) not in known]

    def _forget(self) -> None:
        named = set(map(peer_id_in, self._named))
        strangers = [peer_id for peer_id in self._places if peer_id not in named]
        for peer_id in strangers[: max(0, len(strangers) - self._most)]:
            del self._places[peer_id]
