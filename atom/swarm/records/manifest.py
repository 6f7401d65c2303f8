"""What an owner publishes on the DHT of a run: its manifest, which also says who may take part."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from atom.base.errors import ConfigError, PeerRefused
from atom.base.reasons import Reason
from atom.config.address import RUN_NAME
from atom.config.load import run_from_text
from atom.swarm.chain.commit import (
    Digest,
    Head,
    Incarnation,
    PeerId,
    Voter,
    canonical_digest,
    genesis,
)
from atom.swarm.records.lease import Text

MAX_RUN_FILE_CHARACTERS = 64 * 1024
MAX_VERSIONS = 32
MAX_COUNT = 2**53
"""Of tokens or samples: what every reader of JSON holds exactly."""

RunName = Annotated[str, lambda text: RUN_NAME.fullmatch(text) is not None]
RunFile = Annotated[str, lambda text: len(text) <= MAX_RUN_FILE_CHARACTERS]
Amount = Annotated[int, lambda number: number <= MAX_COUNT]


class PackageVersion(NamedTuple):
    package: Text
    version: Text


class DataAmount(NamedTuple):
    """How much a run trains on. The data's digest decides which; this is for people."""

    tokens: Amount
    """To train on; 0: the samples are no text."""
    samples: Amount
    """To train on: sequences of text, or items of an own dataset."""
    held_back: Amount
    """For validation: tokens, or samples where there are none."""


@dataclass(frozen=True)
class Manifest:
    """What a run is: its file, the program it computes, the versions that decide both.

    Signed by the owner (the peer that founded the run); its digest is part of genesis.
    """

    run: RunName
    owner: PeerId
    """Peer id of the founder; verifies the manifest and the genesis voter."""
    run_file: RunFile
    """The run file's normalised TOML or JSON text: everything the swarm agrees on."""
    graph_hash: Text
    program_hash: Text
    """sha256 hex of the source generated at the canonical cut (one sub-model per layer)."""
    versions: Annotated[tuple[PackageVersion, ...], MAX_VERSIONS]
    """Of packages that change the graph."""
    data_digest: Text
    """Digest of the tokenized training set, or "" if peers may hold different data."""
    initial_state_digest: Digest
    founder_incarnation: Incarnation
    created_at: float
    data_amount: DataAmount | None = None
    """None: nobody said it."""


def manifest_digest(manifest: Manifest) -> bytes:
    """32 bytes that name the run; part of genesis."""
    return canonical_digest("manifest", manifest)


def first_head(manifest: Manifest) -> Head:
    """Where the run's chain begins."""
    founder = Voter(manifest.owner, manifest.founder_incarnation)
    return genesis(manifest_digest(manifest), manifest.initial_state_digest, founder)


@dataclass(frozen=True)
class AllowList:
    """The peers of a run. All of them have the same list: it is in the run's manifest."""

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
