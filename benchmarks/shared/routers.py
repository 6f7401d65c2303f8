"""Homes behind routers that translate addresses, in network namespaces.

A bridge is the internet. Its numbers (11.22.33.0/24) lead nowhere outside the namespaces; miniupnpd
refuses to open ports where the outside address is one of those reserved for documentation.

Each home has a router, and hosts behind it with the same private numbers as in every other home. A
router keeps the source port of a connection if it can ("steady"), or takes a random one for each
destination ("random"), or lies itself behind a router of its provider ("provider"). A router may
run miniupnpd, which opens ports by PCP, NAT-PMP and UPnP. Needs root, `ip`, `nft`, `sysctl`, and
miniupnpd for such routers.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

PUBLIC = "11.22.33"
PUBLIC_IPV6 = "2001:db8"
LAN = "192.168.1"
PROVIDER = "100.64.0"
_TABLE = """
table inet filter {{
  chain input {{ type filter hook input priority 0; policy drop;
    ct state established,related accept
    iifname {{ "lan", "lo" }} accept
  }}
  chain forward {{ type filter hook forward priority 0; policy drop;
    ct state established,related accept
    iifname "lan" accept
    ct status dnat accept
    jump miniupnpd
  }}
  chain miniupnpd {{ }}
  chain prerouting {{ type nat hook prerouting priority -100;
    jump prerouting_miniupnpd
  }}
  chain prerouting_miniupnpd {{ }}
  chain postrouting {{ type nat hook postrouting priority 100;
    jump postrouting_miniupnpd
    meta nfproto ipv4 oifname "wan" masquerade {random}
  }}
  chain postrouting_miniupnpd {{ }}
}}
"""
_DAEMON = """ext_ifname=wan
listening_ip=lan
enable_natpmp=yes
enable_upnp={upnp}
port=5000
secure_mode=yes
uuid=00000000-0000-0000-0000-000000000001
upnp_table_name=filter
upnp_nat_table_name=filter
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
allow 1024-65535 {lan}.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""


@dataclass(frozen=True)
class Host:
    """Machine in a home, or on the internet."""

    namespace: str
    address: str
    """Its own IPv4 address."""
    public: str
    """IPv4 address under which the internet sees it."""
    hub: str
    """Namespace with the other end of its line: its router's, or the internet's."""
    outer: str
    """Interface at that end."""
    router: str = ""
    """Namespace of its router; empty: none."""

    def run(self, *command: str, timeout_s: float = 60.0) -> str:
        """Run a command on this machine, and return its output."""
        return _run("ip", "netns", "exec", self.namespace, *command, timeout_s=timeout_s)


@dataclass
class Internet:
    """Network of networks; close it by leaving `internet`."""

    folder: Path
    mark: str = field(default_factory=lambda: f"atom{os.getpid() % 10_000}")
    spaces: list[str] = field(default_factory=list)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Process that opens ports, by the namespace of its router."""
    _count: int = 10

    def host(self) -> Host:
        """Add a machine with an address of its own on the internet."""
        space, address = self._space("host"), self._next(PUBLIC)
        outer = self._plug(space, "eth0", self.hub, address, f"{PUBLIC}.1")
        return Host(space, address, address, self.hub, outer)

    def host_without_ipv4(self) -> Host:
        """Add a machine with only an IPv6 address of its own on the internet."""
        space, address = self._space("host"), f"{PUBLIC_IPV6}::{len(self.spaces):x}"
        outer = f"v{os.getpid() % 10_000}x{len(self.spaces)}"
        _run(*f"ip -n {self.hub} link add {outer} type veth peer name eth0 netns {space}".split())
        _run(*f"ip -n {self.hub} link set {outer} master lan up".split())
        _run(*f"ip -n {space} address add {address}/64 dev eth0 nodad".split())
        _run(*f"ip -n {space} link set eth0 up".split())
        return Host(space, address, address)

    def move(self, host: Host) -> Host:
        """Restart the router of a home: it has another address, and has forgotten all ports."""
        self._stop(host.router)
        enter = "ip", "netns", "exec", host.router
        for chain in ("miniupnpd", "prerouting_miniupnpd", "postrouting_miniupnpd"):
            _run(*enter, "nft", "flush", "chain", "inet", "filter", chain)
        address = self._next(PUBLIC)
        _run(*f"ip -n {host.router} address flush dev wan".split())
        _run(*f"ip -n {host.router} address add {address}/24 dev wan".split())
        _run(*f"ip -n {host.router} route replace default via {PUBLIC}.1".split())
        self._serve(host.router, "yes")
        return replace(host, public=address)

    def home(
        self, kind: str = "steady", hosts: int = 1, opens: bool = False, upnp: bool = True
    ) -> list[Host]:
        """Add a home, and return its machines.

        Args:
            kind: "steady", "random" or "provider": see the module.
            hosts: number of machines.
            opens: True: the router opens ports on request.
            upnp: False: only by PCP and NAT-PMP.
        """
        hub, network = self.hub, PUBLIC
        public = ""
        if kind == "provider":
            hub, public = self._router(self.hub, PUBLIC, PROVIDER, "")
            network = PROVIDER
        router, wan = self._router(hub, network, LAN, "fully-random" if kind == "random" else "")
        made = []
        for number in range(hosts):
            space, address = self._space("host"), f"{LAN}.{number + 2}"
            outer = self._plug(space, "eth0", router, address, f"{LAN}.1")
            made.append(Host(space, address, public or wan, router, outer, router))
        if opens:
            self._serve(router, "yes" if upnp else "no")
        return made

    def ports(self, host: Host) -> list[str]:
        """Return the ports that a home's router has opened, as rules of `nft`."""
        chain = "inet", "filter", "prerouting_miniupnpd"
        listed = _run("ip", "netns", "exec", host.router, "nft", "list", "chain", *chain)
        return [line.strip() for line in listed.splitlines() if "dnat" in line]

    @property
    def hub(self) -> str:
        """Namespace of the internet's bridge."""
        return f"{self.mark}-net"

    def begin(self) -> None:
        """Make the bridge."""
        self._space("net")
        self._bridge(self.hub)

    def close(self) -> None:
        """End the routers' daemons and remove all namespaces."""
        for router in list(self.daemons):
            self._stop(router)
        for space in reversed(self.spaces):
            _run("ip", "netns", "delete", space)

    def _next(self, network: str) -> str:
        self._count += 1
        return f"{network}.{self._count}"

    def _space(self, kind: str) -> str:
        name = f"{self.mark}-net" if kind == "net" else f"{self.mark}-{kind}{len(self.spaces)}"
        _run("ip", "netns", "add", name)
        self.spaces.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def _bridge(self, space: str) -> None:
        _run("ip", "-n", space, "link", "add", "lan", "type", "bridge")
        _run("ip", "-n", space, "link", "set", "lan", "up")

    def _plug(self, space: str, device: str, hub: str, address: str, gateway: str) -> str:
        """Lay a line from a namespace to a bridge, and return the interface at the bridge."""
        outer = f"v{os.getpid() % 10_000}x{len(self.spaces)}"
        _run(*f"ip -n {hub} link add {outer} type veth peer name {device} netns {space}".split())
        _run(*f"ip -n {hub} link set {outer} master lan up".split())
        _run(*f"ip -n {space} address add {address}/24 dev {device}".split())
        _run(*f"ip -n {space} link set {device} up".split())
        _run(*f"ip -n {space} route add default via {gateway}".split())
        return outer

    def _router(self, hub: str, network: str, inside: str, random: str) -> tuple[str, str]:
        """Add a router, and return its namespace and its address in the outer network."""
        space, address = self._space("router"), self._next(network)
        self._plug(space, "wan", hub, address, f"{network}.1")
        self._bridge(space)
        _run(*f"ip -n {space} address add {inside}.1/24 dev lan".split())
        enter = "ip", "netns", "exec", space
        _run(*enter, "nft", "-f", "-", text=_TABLE.format(random=random))
        _run(*enter, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        return space, address

    def _serve(self, router: str, upnp: str) -> None:
        settings = self.folder / f"{router}.conf"
        settings.write_text(_DAEMON.format(lan=LAN, upnp=upnp))
        daemon = "miniupnpd", "-d", "-f", str(settings), "-P", str(self.folder / f"{router}.pid")
        log = (self.folder / f"{router}.log").open("wb")
        enter = "ip", "netns", "exec", router
        self.daemons[router] = subprocess.Popen([*enter, *daemon], stdout=log, stderr=log)

    def _stop(self, router: str) -> None:
        daemon = self.daemons.pop(router)
        daemon.terminate()
        daemon.wait(10)


@contextlib.contextmanager
def internet() -> Iterator[Internet]:
    """Yield an internet without hosts, and remove it afterwards.

    Raises:
        subprocess.CalledProcessError, OSError: no root, or a program is missing.
    """
    with tempfile.TemporaryDirectory(prefix="atom-routers-") as folder:
        made = Internet(Path(folder))
        try:
            made.begin()
            yield made
        finally:
            made.close()


def _run(*command: str, text: str | None = None, timeout_s: float = 60.0) -> str:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=timeout_s, check=True
    )
    return done.stdout
