"""Texts of addresses: join addresses, libp2p multiaddrs, HOST:PORT. No name is looked up here.

A join address is one string with the DHT nodes to enter by, the run, and the peer id of its owner:

    /ip4/10.0.0.5/tcp/31337/p2p/12D3KooW…/run/shakespeare/owner/12D3KooW…

Several entrances are separated by commas. A recent head may follow, `/head/ROUND-DIGEST`: then only
a chain with that head is joined, so that a forged history cannot capture a newcomer. If the run's
owner signed it, `/head/ROUND-DIGEST-SIGNATURE`, a peer also leaves its own chain for that one.
"""

import errno
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import base58

from atom.base.errors import AddressError, PortInUseError
from atom.config.address import RUN_NAME, parse_host, parse_host_port
from atom.swarm.identity import Identity, is_peer_id, verify

EXAMPLE_PEER = "12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"
EXAMPLE_MULTIADDR = f"/ip4/10.0.0.5/tcp/31337/p2p/{EXAMPLE_PEER}"
EXAMPLE_JOIN = f"{EXAMPLE_MULTIADDR}/run/shakespeare/owner/{EXAMPLE_PEER}"

MAX_ADDRESS_CHARACTERS = 4096
MAX_BOOTSTRAP = 16
MOST_ENTRANCES = 3
"""Bound on entrances in an address that we make: people paste it."""
_BACKLOG = 64
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Translated by a gateway to the IPv4 address in the last 32 bits."""

_MULTIADDR = re.compile(
    r"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[^/]+)/(?:tcp|udp)/(?P<port>[^/]+)"
    r"(?:/quic|/quic-v1|/ws|/wss|/tls|/noise|/p2p-circuit|/p2p/[^/]+)*/p2p/[^/]+"
)
"""Address of a DHT node, maybe behind a relay."""
_JOIN = re.compile(
    r"(?P<nodes>.+?)/run/(?P<run>[^/]*)/owner/(?P<owner>[^/]*)"
    r"(?:/head/(?P<round>[0-9]{1,12})-(?P<digest>[0-9a-f]{64})(?:-(?P<signature>[0-9a-f]{128}))?)?"
)
HEAD_DOMAIN = "owner-head"
"""Signature domain of a head that the run's owner has chosen: over `_head_text`."""


class RecentHead(NamedTuple):
    """Head that a run's chain must have."""

    round: int
    digest: bytes
    signature: bytes = b""
    """Verified signature of the run's owner; empty: the owner did not sign this head."""


@dataclass(frozen=True)
class JoinAddress:
    """DHT nodes to enter by, and the run to look for there."""

    bootstrap: tuple[str, ...]
    """libp2p multiaddrs, each ending in /p2p/<peer id>."""
    run: str
    owner: str
    """Peer id of the founder."""
    head: RecentHead | None = None
    """Head that the chain must have; None: any chain is joined."""


@dataclass(frozen=True)
class ListenAddress:
    """Interface and port to listen on; port 0 lets the system choose."""

    host: str
    """An IP address literal; 0.0.0.0 or :: for every interface."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def multiaddr(self) -> str:
        """Return the address in libp2p's form, such as /ip4/0.0.0.0/tcp/31337."""
        family = "ip6" if ":" in self.host else "ip4"
        return f"/{family}/{self.host}/tcp/{self.port}"

    def multiaddrs(self) -> tuple[str, ...]:
        """Return the multiaddrs to listen on: "::" stands for both address families."""
        both = (ListenAddress("0.0.0.0", self.port), self) if self.host == "::" else (self,)
        return tuple(each.multiaddr() for each in both)

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the address."""
        return ipaddress.ip_address(self.host).is_loopback


def parse_join_address(text: str) -> JoinAddress:
    """Parse a join address, also one with `join:` before it, or folded by a terminal.

    Raises:
        AddressError: The text is no join address; the message has an example.
    """
    text = re.sub(r"\s*\n\s*", "", text).strip().removeprefix("join:").lstrip()
    if len(text) > MAX_ADDRESS_CHARACTERS:
        raise _join_error(f"a join address has at most {MAX_ADDRESS_CHARACTERS} characters")
    match = _JOIN.fullmatch(text)
    if match is None:
        raise _join_error(f"{_short(text)} is not a join address: NODE/run/NAME/owner/PEER_ID")
    if not is_peer_id(match["owner"]):
        raise _join_error(f"{_short(match['owner'])} is not a peer id of a run's owner")
    nodes = parse_multiaddrs(match["nodes"].split(","))
    address = JoinAddress(nodes, check_run_name(match["run"]), match["owner"])
    if match["digest"] is None:
        return address
    signature = bytes.fromhex(match["signature"] or "")
    head = RecentHead(int(match["round"]), bytes.fromhex(match["digest"]), signature)
    if signature and not verify(address.owner, HEAD_DOMAIN, _head_text(address, head), signature):
        raise AddressError(
            f"the run's owner did not sign the head of round {head.round} in this address",
            "copy the whole address again, as `atom info` prints it at the owner's peer",
        )
    return replace(address, head=head)


def format_join_address(address: JoinAddress) -> str:
    """Return the string to paste; `parse_join_address` reads it back."""
    run = f"{','.join(address.bootstrap)}/run/{address.run}/owner/{address.owner}"
    if (head := address.head) is None:
        return run
    signature = f"-{head.signature.hex()}" if head.signature else ""
    return f"{run}/head/{head.round}-{head.digest.hex()}{signature}"


def with_head(address: JoinAddress, number: int, digest: bytes, identity: Identity) -> JoinAddress:
    """Return the address with the head of a round, signed if `identity` is the owner's.

    Args:
        address: Join address of the run.
        number: Number of the round.
        digest: Digest of the head.
        identity: Key of this peer.
    """
    head = RecentHead(number, digest)
    if identity.peer_id == address.owner:
        signature = identity.sign(HEAD_DOMAIN, _head_text(address, head))
        head = head._replace(signature=signature)
    return replace(address, head=head)


def _head_text(address: JoinAddress, head: RecentHead) -> bytes:
    """Return the bytes that the owner signs: the run's name, which has no slash, and the head."""
    return f"{address.run}/{head.round}-{head.digest.hex()}".encode()


def with_entrances(address: JoinAddress, nodes: Iterable[str]) -> JoinAddress:
    """Append other (checked) multiaddrs to a join address, which then survives the loss of some.

    One of each node is kept, and MOST_ENTRANCES in all.
    """
    by_node = dict[str, str]()
    for each in (*address.bootstrap, *nodes):
        by_node.setdefault(peer_id_in(each), each)
    return replace(address, bootstrap=tuple(by_node.values())[:MOST_ENTRANCES])


def check_run_name(name: str) -> str:
    """Return the name of a run if it can be part of an address.

    Raises:
        AddressError: The name cannot.
    """
    if RUN_NAME.fullmatch(name) is None:
        raise AddressError(
            f"{_short(name)} cannot be a run's name",
            "use the name under [run] in its file: at most 63 of a-z, 0-9, '.', '_' and '-', "
            "the first a letter or digit",
        )
    return name


def parse_multiaddrs(texts: Sequence[str]) -> tuple[str, ...]:
    """Check DHT node addresses (--initial-peers), and return them without blanks.

    Raises:
        AddressError: There are too many, or one is malformed; the message has an example.
    """
    if len(texts) > MAX_BOOTSTRAP:
        raise AddressError(f"{len(texts)} DHT nodes named", f"name at most {MAX_BOOTSTRAP}")
    return tuple(parse_multiaddr(text) for text in texts)


def parse_multiaddr(text: str) -> str:
    """Check one libp2p multiaddr that ends in /p2p/<peer id>; return it without blanks.

    Raises:
        AddressError: The address is malformed; the message names the part that is wrong.
    """
    text = text.strip()
    match = _MULTIADDR.fullmatch(text) if len(text) <= MAX_ADDRESS_CHARACTERS else None
    if match is None:
        raise _multiaddr_error(text, "it does not have the form /ip4/HOST/tcp/PORT/p2p/PEER_ID")
    try:
        _HOSTS[match["kind"]](match["host"])
        parse_host_port(f"any:{match['port']}")
        for peer_id in re.findall(r"/p2p/([^/]+)", text):
            _multihash(peer_id)
    except ValueError as problem:
        raise _multiaddr_error(text, f"{problem}"[:100]) from None
    return text


def peer_id_in(multiaddr: str) -> str:
    """Return the peer id at the end of a (checked) multiaddr."""
    return multiaddr.rpartition("/p2p/")[2]


def parse_listen(text: str) -> ListenAddress:
    """Parse "0.0.0.0:31337", "[::]:0", ":31337" or "localhost:0".

    Raises:
        AddressError: The text is no such address; the message has an example.
    """
    text = text.strip()
    try:
        host, port = parse_host_port(f"0.0.0.0{text}" if text.startswith(":") else text)
        host = str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
        if "%" in host:
            raise ValueError(f"{host}: a zone (%) cannot be listened on")
    except ValueError as problem:
        hint = "write HOST:PORT, for example 0.0.0.0:31337, or [::]:31337 for IPv6"
        named = f"{text!r}: " * (repr(text) not in str(problem))
        raise AddressError(f"{named}{problem}"[:300], hint) from None
    return ListenAddress(host, port)


def listening(host: str, port: int, setting: str) -> socket.socket:
    """Open a socket that others may dial; on "::" for IPv4 and IPv6.

    Args:
        host: An IP address of this machine.
        port: TCP port; 0 lets the system choose.
        setting: The setting that gave the address, named in errors.

    Raises:
        PortInUseError: Another program listens there.
        AddressError: This process cannot have that interface or port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} of {host} is in use",
                f"choose another, or 0 for any free port: {setting}",
            ) from error
        raise AddressError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            f"use an address of this machine (or 0.0.0.0) and a port above 1023: {setting}",
        ) from error


def carried_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address that an IPv6 address carries, or else the address itself.

    IPv6 addresses that are mapped, of 6to4, of Teredo or of the well-known NAT64 prefix lead to the
    IPv4 address inside.

    Raises:
        ValueError: `host` is not an IP address.
    """
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        return address
    translated = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
    _, tunnelled = address.teredo or (None, None)
    return address.ipv4_mapped or address.sixtofour or translated or tunnelled or address


def host_group(host: str) -> str:
    """Return the group that an IP address is counted with: its /64 for IPv6, itself for IPv4.

    A home or a rented machine has at least a whole /64, so a limit for each IPv6 address would be
    none. Text that is not an IP address is returned as it is.
    """
    try:
        address = carried_address(host)
    except ValueError:
        return host
    network = ipaddress.ip_network((int(address) >> 64 << 64, 64)) if address.version == 6 else ""
    return str(network or address)


def _multihash(text: str) -> None:
    """Check a peer id in base58: sha2-256 (RSA keys, "Qm…") or identity (Ed25519, "12D3…")."""
    raw = base58.b58decode(text)
    if len(raw) < 2 or raw[0] not in (0x00, 0x12) or raw[1] != len(raw) - 2:
        raise ValueError(f"{text!r} is not a peer id")


_HOSTS: dict[str, Callable[[str], object]] = {
    "ip4": ipaddress.IPv4Address,
    "ip6": ipaddress.IPv6Address,
    **dict.fromkeys(("dns", "dns4", "dns6"), parse_host),
}
"""Parser of the hosts of each kind; raises ValueError."""


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
