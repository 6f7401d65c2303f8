"""Peer ids as people write them into a run file: checked for slips, not for whose they are."""

from typing import Annotated

import base58
from pydantic import AfterValidator

_CHARACTERS = 52
_PREFIX = bytes.fromhex("002408011220")
"""libp2p: the key itself as the id, 36 bytes, an Ed25519 public key of 32 bytes."""


def _peer_id_of(text: str) -> str:
    try:
        raw = base58.b58decode(text) if len(text) == _CHARACTERS else b""
    except ValueError:
        raw = b""
    if not raw.startswith(_PREFIX) or len(raw) != len(_PREFIX) + 32:
        raise ValueError(f"{text[:64]!r} is no peer id; it is what `atom id` prints: 12D3KooW…")
    return text


PeerId = Annotated[str, AfterValidator(_peer_id_of)]
"""An Ed25519 peer id in its one spelling: always 52 characters."""
