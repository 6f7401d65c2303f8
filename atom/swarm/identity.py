"""Identity of a peer: an Ed25519 key whose public half *is* the peer id, in libp2p's own format.

libp2p's daemon reads the same key file. So the DHT node, the TLS certificate and every
signature use one identity, and a signature can be verified from the peer id alone (format: libp2p
specs, peer-ids; an Ed25519 key is small enough to be embedded in the id).
"""

import os
from functools import lru_cache
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from atom.base.errors import StorageError
from atom.base.files import rename_durably, why_not_written

_PRIVATE_PREFIX = bytes.fromhex("08011240")  # protobuf: key type Ed25519, 64 bytes follow
_PUBLIC_PREFIX = bytes.fromhex("08011220")  # protobuf: key type Ed25519, 32 bytes follow
_IDENTITY_MULTIHASH = bytes.fromhex("0024")  # multihash "identity", 36 bytes follow
PEER_ID_CHARACTERS = 52
"""Length of a peer id in base58. The decoder ignores trailing blanks, so the length is checked:
each peer id has only one accepted spelling."""
_SHORT_ID_CHARACTERS = 6


def short_id(peer_id: str) -> str:
    """Return the last characters of a peer id, for display: all peer ids begin alike."""
    return f"…{peer_id[-_SHORT_ID_CHARACTERS:]}"


def peer_id_of(public_key: bytes) -> str:
    """Return the libp2p peer id (base58) of a raw 32-byte Ed25519 public key."""
    return base58.b58encode(_IDENTITY_MULTIHASH + _PUBLIC_PREFIX + public_key).decode()


@lru_cache(maxsize=8192)
def public_key_of(peer_id: str) -> Ed25519PublicKey:
    """Return the key inside a peer id.

    Raises:
        ValueError: The text is not an Ed25519 peer id.
    """
    head = _IDENTITY_MULTIHASH + _PUBLIC_PREFIX
    raw = base58.b58decode(peer_id) if len(peer_id) == PEER_ID_CHARACTERS else b""
    if len(raw) != len(head) + 32 or not raw.startswith(head):
        raise ValueError(f"not an Ed25519 peer id: {peer_id[:64]!r}")
    return Ed25519PublicKey.from_public_bytes(raw[len(head) :])


@lru_cache(maxsize=8192)
def is_peer_id(text: str) -> bool:
    """Return True if `text` is an Ed25519 peer id in its only accepted spelling."""
    try:
        public_key_of(text)
    except ValueError:
        return False
    return True


def verify(peer_id: str, domain: str, payload: bytes, signature: bytes) -> bool:
    """Return True if `peer_id` signed `payload` in this signature domain.

    Malformed peer ids and signatures give False, never an error.

    Args:
        peer_id: Peer that is said to have signed.
        domain: Purpose of the signature; a signature of another purpose is not valid.
        payload: Signed bytes.
        signature: Signature to verify.
    """
    try:
        public_key_of(peer_id).verify(signature, _framed(domain, payload))
    except (ValueError, InvalidSignature):
        return False
    return True


class Identity:
    """Key pair of this peer.

    Each signature is bound to a domain, so that a signature made for one purpose is not valid for
    another.
    """

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self.private_key = private_key
        self.peer_id = peer_id_of(private_key.public_key().public_bytes_raw())

    @classmethod
    def create(cls) -> "Identity":
        """Return an identity with a new random key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load_or_create(cls, path: Path) -> "Identity":
        """Read the key file. If it does not exist, create a key and save it (mode 0600).

        Raises:
            StorageError: The file is not an Ed25519 identity, or cannot be written.
        """
        if not path.exists():
            identity = cls.create()
            identity.save(path)
            return identity
        raw = path.read_bytes()
        if len(raw) != len(_PRIVATE_PREFIX) + 64 or not raw.startswith(_PRIVATE_PREFIX):
            raise StorageError(
                f"{path} is not an Ed25519 identity file",
                "restore it from a backup, or delete it to start as a new peer",
            )
        seed = raw[len(_PRIVATE_PREFIX) :][:32]
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    def save(self, path: Path) -> None:
        """Write the key in libp2p's format to a new file, sync it, and rename it to `path`.

        Raises:
            StorageError: The file cannot be written.
        """
        raw = (
            self.private_key.private_bytes_raw() + self.private_key.public_key().public_bytes_raw()
        )
        partial = path.with_name(f"{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(_PRIVATE_PREFIX + raw)
                file.flush()
                os.fsync(file.fileno())
            rename_durably(partial, path)
        except OSError as problem:
            raise StorageError(
                f"cannot write {path}: {why_not_written(problem)}", "free some disk space"
            ) from problem

    def sign(self, domain: str, payload: bytes) -> bytes:
        """Return the signature (64 bytes) over `domain` and `payload`."""
        return self.private_key.sign(_framed(domain, payload))


def _framed(domain: str, payload: bytes) -> bytes:
    name = f"atom/{domain}".encode()
    return len(name).to_bytes(2, "big") + name + payload
