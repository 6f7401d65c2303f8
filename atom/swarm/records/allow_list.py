"""Who may take part in a run: everybody, or those whom its owner has listed and signed for."""

from collections.abc import Iterable
from dataclasses import dataclass

from atom.base.errors import ConfigError, PeerRefused
from atom.base.reasons import Reason
from atom.config.load import run_from_text
from atom.swarm.records.run_manifest import Manifest


@dataclass(frozen=True)
class AllowList:
    """The peers of a run. All of them have the same: the manifest that names the run has it."""

    peer_ids: frozenset[str] | None = None
    """None: the run is open."""

    @classmethod
    def of(cls, owner: str, members: Iterable[str] | None) -> "AllowList":
        """`members` as the run file has them, and the owner."""
        return cls(None if members is None else frozenset(members) | {owner})

    def holds(self, peer_id: str) -> bool:
        return self.peer_ids is None or peer_id in self.peer_ids

    def check(self, peer_id: str) -> None:
        """Raises: PeerRefused(NOT_ON_THE_LIST)."""
        if not self.holds(peer_id):
            raise PeerRefused(Reason.NOT_ON_THE_LIST, f"{peer_id[:64]} is no member of the run")


OPEN = AllowList()


def seen_from_outside(manifest: Manifest) -> AllowList:
    """The list of a (verified) manifest, for those who only look.

    They may look at a run of a newer version, whose file they cannot read: then at everybody in it.
    Peers read the whole run file before they take part, or do not.
    """
    try:
        run = run_from_text(manifest.run_file)
    except ConfigError:
        return OPEN
    return AllowList.of(manifest.owner, run.swarm.members)
