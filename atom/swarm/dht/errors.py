"""libp2p's and hivemind's words for a failed start, put into a user's words. Pure text."""

import re
from collections.abc import Sequence

from atom.base.errors import AddressError
from atom.swarm.records.lease import CLOCKS_APART_SECONDS

_CLOCKS = re.compile(r"within .* seconds.*local: ([0-9.]+), peer: ([0-9.]+)")
_OTHER_KEY = re.compile(r"remote key matches (\w+)")


def explain_unreachable(addresses: Sequence[str], failures: Sequence[str]) -> AddressError:
    """Why none of the addresses could be dialled; the first failure speaks for all."""
    where = addresses[0] if len(addresses) == 1 else f"any of the {len(addresses)} DHT nodes named"
    text = " ".join(failures)
    if "peer id mismatch" in text or "remote key matches" in text:
        address, failure = next(
            each
            for each in zip(addresses, failures, strict=True)
            if "peer id mismatch" in each[1] or "remote key matches" in each[1]
        )
        other = _OTHER_KEY.search(failure)
        found = f" ({other[1]})" if other else ""
        return AddressError(
            f"{address} is reached, but another peer{found} answers there",
            "the node was started anew with another identity: ask for its present address",
        )
    if "connection refused" in text:
        return AddressError(
            f"cannot reach {where}: connection refused",
            "nothing listens there: check host and port, and that the node is running",
        )
    if "network is unreachable" in text or "no route to host" in text:
        return AddressError(
            f"cannot reach {where}: this machine has no way to that network",
            "is it connected? `ip route` shows its ways, `ping HOST` whether one leads there",
        )
    if "dial to self" in text:
        return AddressError(
            f"{addresses[0]} is this peer itself", "use the address of another node, or another "
            "state directory (with its own identity)"
        )  # fmt: skip
    if "no good addresses" in text and all(each.startswith("/ip") for each in addresses):
        return AddressError(
            f"cannot reach {where}: it is of a kind that is not dialled",
            "addresses end in /tcp/PORT/p2p/PEER_ID: ask for such a one",
        )
    if "no good addresses" in text or "no addresses" in text:
        return AddressError(
            f"cannot reach {where}: its host name is unknown", "check the spelling of the address"
        )
    return AddressError(
        f"cannot reach {where}: {_brief(failures[0])}",
        "check the address, that the node is running, and that a firewall lets its port through",
    )


def explain_refusal(text: str) -> AddressError:
    """Why a reached DHT node did not take us in."""
    clocks = _CLOCKS.search(text)
    if clocks is not None:
        ahead_s = float(clocks[1]) - float(clocks[2])
        way = "ahead of" if ahead_s > 0 else "behind"
        return AddressError(
            f"this machine's clock is {abs(ahead_s):.0f} s {way} the DHT's; "
            f"{CLOCKS_APART_SECONDS:.0f} s are tolerated",
            "set the clock (`timedatectl set-ntp true`; in WSL 2, whose clock stands while Windows "
            "sleeps: `sudo hwclock --hctosys`), then try again",
        )
    if "can't access this node" in text:
        return AddressError(
            "the DHT node cannot call this machine back",
            "open the port of [network] listen in the firewall, or announce a reachable address",
        )
    if "none of the initial_peers responded" in text:
        return AddressError(
            "a libp2p node answers at this address, but it is no DHT node",
            "use the address of a peer, of `atom bootstrap` or of hivemind-dht",
        )
    return AddressError(f"joining the DHT failed: {_brief(text)}", "try again, or another node")


def _brief(text: str) -> str:
    return " ".join(text.split())[:300] or "no reason given"
