"""Addresses people paste: join addresses, libp2p multiaddrs, HOST:PORT. Pure text, no look-ups.

A join address is one string: where to enter the DHT, which run, and who founded it:

    /ip4/10.0.0.5/tcp/31337/p2p/12D3KooW…/run/shakespeare/owner/12D3KooW…

Several entrances are separated by commas. Without `/owner/…` the run is found by its name alone.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

import base58

from atom.base.errors import AddressError
from atom.config.run_name import RUN_NAME
from atom.swarm.identity import public_key_of

EXAMPLE_PEER = "12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"
EXAMPLE_MULTIADDR = f"/ip4/10.0.0.5/tcp/31337/p2p/{EXAMPLE_PEER}"
EXAMPLE_JOIN = f"{EXAMPLE_MULTIADDR}/run/shakespeare/owner/{EXAMPLE_PEER}"

MAX_ADDRESS_CHARACTERS = 4096
MAX_BOOTSTRAP = 16

_WITH_VALUE = {"ip4", "ip6", "dns", "dns4", "dns6", "dnsaddr", "tcp", "udp", "p2p"}
_WITHOUT_VALUE = {"quic", "quic-v1", "ws", "wss", "tls", "noise", "p2p-circuit"}
_HOST_PROTOCOLS = {"ip4", "ip6", "dns", "dns4", "dns6", "dnsaddr"}
_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\.?")


@dataclass(frozen=True)
class JoinAddress:
    """Where to enter the DHT and which run to look for there."""

    bootstrap: tuple[str, ...]
    """libp2p multiaddrs, each ending in /p2p/<peer id>."""
    run: str
    owner: str | None = None
    """Peer id of the founder; None: the only run of that name is meant."""


@dataclass(frozen=True)
class ListenAddress:
    """An interface and a port to listen on; port 0 lets the system choose."""

    host: str
    """An IP address literal; 0.0.0.0 or :: for every interface."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def multiaddr(self) -> str:
        family = "ip6" if ":" in self.host else "ip4"
        return f"/{family}/{self.host}/tcp/{self.port}"

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback


def parse_join_address(text: str) -> JoinAddress:
    """Reads a join address, also with the `join:` before it, or folded by a terminal. Raises:
    AddressError with an example."""
    text = re.sub(r"\s*\n\s*", "", text).strip().removeprefix("join:").lstrip()
    if len(text) > MAX_ADDRESS_CHARACTERS:
        raise _join_error(f"a join address has at most {MAX_ADDRESS_CHARACTERS} characters")
    head, marker, tail = text.partition("/run/")
    if not marker:
        raise _join_error(f"{_short(text)} is not a join address: it names no run (/run/NAME)")
    if not head:
        raise _join_error(f"{_short(text)} is not a join address: no DHT node before /run/")
    parts = tail.split("/")
    if len(parts) == 1:
        run, owner = parts[0], None
    elif len(parts) == 3 and parts[1] == "owner":
        run, owner = parts[0], _ed25519_peer_id(parts[2])
    else:
        raise _join_error(f"{_short(text)} is not a join address: after /run/NAME only /owner/ID")
    return JoinAddress(parse_multiaddrs(head.split(",")), check_run_name(run), owner)


def format_join_address(address: JoinAddress) -> str:
    """The one string to paste; `parse_join_address` reads it back."""
    text = ",".join(address.bootstrap) + f"/run/{address.run}"
    return text if address.owner is None else f"{text}/owner/{address.owner}"


def check_run_name(name: str) -> str:
    """Returns the name. Raises: AddressError unless it can be part of an address."""
    if RUN_NAME.fullmatch(name) is None:
        raise AddressError(
            f"{_short(name)} cannot be a run's name",
            "use the name under [run] in its file: at most 63 of a-z, 0-9, '.', '_' and '-', "
            "the first a letter or digit",
        )
    return name


def parse_multiaddrs(texts: Sequence[str]) -> tuple[str, ...]:
    """Checks DHT node addresses (--initial-peers). Raises: AddressError with an example."""
    if len(texts) > MAX_BOOTSTRAP:
        raise AddressError(f"{len(texts)} DHT nodes named", f"name at most {MAX_BOOTSTRAP}")
    return tuple(parse_multiaddr(text) for text in texts)


def parse_multiaddr(text: str) -> str:
    """Checks one libp2p multiaddr that ends in /p2p/<peer id>; returns it without blanks.

    Raises: AddressError naming the part that is wrong.
    """
    text = text.strip()
    parts = _protocols(text)
    if parts[0][0] not in _HOST_PROTOCOLS:
        raise _multiaddr_error(text, "it starts with no host (/ip4/…, /ip6/…, /dns4/…)")
    if parts[-1][0] != "p2p":
        raise _multiaddr_error(text, "it does not end in /p2p/PEER_ID")
    if not any(name in ("tcp", "udp", "dnsaddr") for name, _ in parts):
        raise _multiaddr_error(text, "it has no port (/tcp/31337)")
    return text


def peer_id_in(multiaddr: str) -> str:
    """The peer id a (checked) multiaddr ends in."""
    return multiaddr.rpartition("/p2p/")[2]


def parse_listen(text: str) -> ListenAddress:
    """ "0.0.0.0:31337", "[::]:0", ":31337", "localhost:0". Raises: AddressError with an example."""
    hint = "write HOST:PORT, for example 0.0.0.0:31337, or [::]:31337 for IPv6"
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5:
        raise AddressError(f"{_short(text)} is not HOST:PORT", hint)
    if int(port) > 65535:
        raise AddressError(f"{_short(text)}: a port is a number from 0 to 65535", hint)
    bracketed = host.startswith("[") and host.endswith("]")
    host = {"": "0.0.0.0", "localhost": "127.0.0.1"}.get(host, host[1:-1] if bracketed else host)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise AddressError(f"{_short(text)}: {_short(host)} is not an IP address", hint) from None
    if (address.version == 6) != bracketed or "%" in host:
        raise AddressError(f"{_short(text)}: brackets go with IPv6, and only with IPv6", hint)
    return ListenAddress(str(address), int(port))


def rank_addresses(visible: Sequence[str], primary_host: str | None = None) -> tuple[str, ...]:
    """Multiaddrs, those most worth pasting first.

    Announced names and public addresses, then `primary_host` (the address on the default route),
    then other private ones (a container bridge, say), and loopback last.
    """
    return tuple(sorted(visible, key=lambda text: _rank(text, primary_host)))


def _rank(text: str, primary_host: str | None) -> tuple[int, int, int]:
    parts = _protocols(text)
    protocol, host = parts[0]
    if protocol not in ("ip4", "ip6"):
        distance = 0
    else:
        distance = _distance(ipaddress.ip_address(host), host == primary_host)
    return distance, int(protocol == "ip6"), int(parts[1][0] != "tcp")


def _distance(address: ipaddress.IPv4Address | ipaddress.IPv6Address, primary: bool) -> int:
    if address.is_loopback or address.is_unspecified or address.is_link_local:
        return 4
    if address.is_global:
        return 0
    return 1 if primary else 2


def _protocols(text: str) -> list[tuple[str, str]]:
    words = text.split("/")
    if len(text) > MAX_ADDRESS_CHARACTERS or len(words) < 3 or words[0]:
        raise _multiaddr_error(text, "a multiaddr starts like /ip4/10.0.0.5/tcp/31337")
    found, position = [], 1
    while position < len(words):
        name = words[position]
        if name in _WITHOUT_VALUE:
            found.append((name, ""))
            position += 1
        elif name in _WITH_VALUE and position + 1 < len(words):
            _check_value(text, name, words[position + 1])
            found.append((name, words[position + 1]))
            position += 2
        else:
            raise _multiaddr_error(text, f"/{name[:40]} is unknown or lacks its value")
    return found


def _check_value(text: str, name: str, value: str) -> None:
    if name in ("ip4", "ip6"):
        try:
            good = ipaddress.ip_address(value).version == int(name[2])
        except ValueError:
            good = False
    elif name in ("tcp", "udp"):
        good = value.isascii() and value.isdigit() and len(value) <= 5 and int(value) <= 65535
    elif name == "p2p":
        good = _is_peer_id(value)
    else:
        good = _HOST_NAME.fullmatch(value) is not None
    if not good:
        raise _multiaddr_error(text, f"/{name}/{value[:60]} has a malformed value")


def _is_peer_id(text: str) -> bool:
    """A base58 multihash: sha2-256 (RSA keys, "Qm…") or identity (Ed25519 keys, "12D3…")."""
    if not 8 <= len(text) <= 128:
        return False
    try:
        raw = base58.b58decode(text)
    except ValueError:
        return False
    return len(raw) >= 2 and raw[0] in (0x00, 0x12) and raw[1] == len(raw) - 2


def _ed25519_peer_id(text: str) -> str:
    try:
        public_key_of(text[:128])
    except ValueError:
        raise _join_error(f"{_short(text)} is not a peer id of a run's owner") from None
    return text


def _multiaddr_error(text: str, detail: str) -> AddressError:
    return AddressError(
        f"{_short(text)} is not the address of a DHT node: {detail}",
        f"a DHT node's address looks like {EXAMPLE_MULTIADDR}",
    )


def _join_error(message: str) -> AddressError:
    hint = f"paste what `atom start` prints after `join:`, such as {EXAMPLE_JOIN}"
    return AddressError(message, hint)


def _short(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:117] + "…")
