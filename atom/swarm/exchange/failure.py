"""How an exchange ends early: the exception, and the last words members exchange about it."""

import contextlib
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.stream.handshake import named_reason
from atom.wire import transport_pb2 as wire

MAX_BROKEN_BYTES = 512
LAST_WORDS_S = 0.3


class ExchangeBroken(PeerRefused):
    """The exchange cannot finish. `suspect`: the peer to leave out next time, if anyone knows.
    `told`: by the last words of a peer that saw it closer, believed over what we saw ourselves."""

    def __init__(
        self, suspect: str | None, reason: Reason, detail: str = "", told: bool = False
    ) -> None:
        super().__init__(reason, detail)
        self.suspect = suspect
        self.told = told


def tell_broken(channel: Channel, failure: Exception | None, me: str) -> None:
    """Tells a neighbour why we hang up, if it still listens."""
    if not isinstance(failure, ExchangeBroken):
        failure = ExchangeBroken(me, Reason.RING_BROKEN)
    words = wire.Broken(suspect=failure.suspect or "", reason=failure.reason.value)
    with contextlib.suppress(OSError):
        patience = Patience.within(LAST_WORDS_S)
        channel.send_frame(Kind.BROKEN, words.SerializeToString(), patience=patience)


def hear_broken(channel: Channel, members: Sequence[str]) -> ExchangeBroken:
    """The neighbour's last words. Raises: OSError; PeerRefused for anything else it says."""
    patience = Patience.within(LAST_WORDS_S)
    return parse_broken(channel.recv_frame(Kind.BROKEN, MAX_BROKEN_BYTES, patience), members)


def parse_broken(raw: bytes, members: Sequence[str]) -> ExchangeBroken:
    """Last words as a failure of our own; a suspect that is no member counts as none."""
    words = wire.Broken()
    with contextlib.suppress(DecodeError):
        words.ParseFromString(raw)
    suspect = words.suspect if words.suspect in members else None
    reason = named_reason(words.reason, Reason.RING_BROKEN)
    return ExchangeBroken(suspect, reason, "told by another", told=True)
