"""What the daemon and its DHT process say to each other: JSON frames over a socket pair.

A frame is four bytes of length (big-endian) and an object; bytes in it travel as base64. Requests
carry an `id` that the answer repeats; the first frame from the child, without one, says whether the
node is up.
"""

import asyncio
import base64
import json
from dataclasses import asdict, dataclass
from typing import Any

from atom.base.errors import AddressError, PortInUseError, StorageError, UserError

MAX_FRAME_BYTES = 16 * 2**20


@dataclass(frozen=True)
class NodeSettings:
    """How a DHT node meets the world."""

    identity_path: str | None = None
    """libp2p key file; None: a throw-away identity (for onlookers)."""
    listen: str | None = None
    """HOST:PORT; None: any free port on the loopback interface."""
    announce: tuple[str, ...] = ()
    """libp2p multiaddrs others should dial instead of the ones we see ourselves."""
    initial_peers: tuple[str, ...] = ()
    """libp2p multiaddrs, each ending in /p2p/<peer id>; none: a new DHT begins here."""
    contacts: tuple[str, ...] = ()
    """DHT nodes met before: dialled too, but it is no error if none of them answers."""
    client_mode: bool = False
    """An onlooker: asks others, stores nothing for them, accepts no calls."""
    auto_relay: bool = False
    """Look for a relay when nobody can dial us."""
    redial_seconds: float = 10.0
    """How often nodes that dropped out of sight are asked again."""
    log_path: str | None = None
    """Where the node's own noise goes; None: nowhere."""


def settings_to_fields(settings: NodeSettings) -> dict[str, Any]:
    """For a frame; `settings_from_fields` reads it back."""
    return asdict(settings)


def settings_from_fields(fields: dict[str, Any]) -> NodeSettings:
    lists = {name: tuple(each) for name, each in fields.items() if isinstance(each, list)}
    return NodeSettings(**(fields | lists))


def encode_frame(message: dict[str, Any]) -> bytes:
    """Raises: ValueError if the message is too large for a frame."""
    body = json.dumps(message, separators=(",", ":"), default=_bytes_to_json).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes")
    return len(body).to_bytes(4, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next frame; None when the other side is gone. Raises: ValueError for nonsense."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes")
        message = json.loads(await reader.readexactly(size), object_hook=_bytes_from_json)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    if not isinstance(message, dict):
        raise ValueError("a frame that is no object")
    return message


def _bytes_to_json(raw: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(raw).decode()}


def _bytes_from_json(fields: dict[str, Any]) -> Any:
    if fields.keys() == {"base64"}:
        return base64.b64decode(fields["base64"], validate=True)
    return fields


_ERROR_KINDS: dict[str, type[UserError]] = {
    kind.__name__: kind for kind in (UserError, AddressError, PortInUseError, StorageError)
}


def error_to_fields(error: UserError) -> tuple[str, str, str]:
    """For a frame; `error_from_fields` makes it an exception again."""
    return type(error).__name__, error.message, error.hint


def error_from_fields(kind: str, message: str, hint: str) -> UserError:
    return _ERROR_KINDS.get(kind, UserError)(message, hint)
