"""What a connection goes on inside of, once both ends have proved who they are in TLS.

Rings may leave it: what they carry is bulk, and short. A connection to a relay does, because TLS to
the peer behind it begins then. Everything else always stays in TLS.
"""

from enum import StrEnum

from atom.swarm.stream.frames import Purpose, Stream
from atom.swarm.stream.record_stream import RecordKeys, RecordStream
from atom.swarm.stream.tls_stream import TlsStream


class RingProtection(StrEnum):
    """The run's owner decides, so that both ends agree."""

    TLS = "tls"
    AES_GCM = "aes-gcm"
    """Larger records than TLS has, keyed inside TLS: faster, and nobody else's invention."""
    NONE = "none"
    """For networks that are trusted: anybody on the way may read and alter gradients."""


def needs_secrets(purpose: Purpose, protection: RingProtection) -> bool:
    """Whether the handshake exchanges secrets for records."""
    return purpose is Purpose.RING and protection is RingProtection.AES_GCM


def after_handshake(
    stream: TlsStream, purpose: Purpose, protection: RingProtection, keys: RecordKeys | None
) -> Stream:
    """The stream that the channel goes on with. Call when the handshake's last frame has been sent,
    or received: whatever came after it is kept."""
    if purpose is Purpose.RELAY:
        return stream.hand_over()
    if purpose is not Purpose.RING or protection is RingProtection.TLS:
        return stream
    below = stream.hand_over()
    if protection is RingProtection.NONE:
        return below
    assert keys is not None, "exchanged in the handshake"
    return RecordStream(below, keys)
