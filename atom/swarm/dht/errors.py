"""libp2p's and hivemind's words for a failed start, put into a user's words. Pure text."""

import re
from collections.abc import Sequence

from atom.base.errors import AddressError
from atom.swarm.records.lease import CLOCKS_APART_SECONDS

_CLOCKS = re.compile(r"within .* seconds.*local: ([0-9.]+), peer: ([0-9.]+)")
_OTHER_KEY = re.compile(r"remote key matches (\w+)")


def explain_unreachable(addresses: Sequence[str], failures: Sequence[str]) -> AddressError:
    """Why none of the addresses could be dialled; the first failure speaks for all."""
    for address, failure in zip(addresses, failures, strict=True):
        if other := _OTHER_KEY.search(failure):
            return AddressError(
                f"{address} is reached, but another peer ({other[1]}) answers there",
                "the node was started anew with another identity: ask for its present address",
            )
    where = addresses[0] if len(addresses) == 1 else f"any of the {len(addresses)} DHT nodes named"
    text = " ".join(failures)
    if "connection refused" in text:
        return AddressError(
            f"cannot reach {where}: connection refused",
            "nothing listens there: check host and port, and that the node is running",
        )
    if "no good addresses" in text or "no addresses" in text:
        return AddressError(
            f"cannot reach {where}: its host name is unknown, or it is of a kind not dialled",
            "check the spelling of the address, which ends in /tcp/PORT/p2p/PEER_ID",
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
