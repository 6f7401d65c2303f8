"""What the ways to a swarm are worth for training. Pure."""

from collections.abc import Iterator

from atom.base.units import format_seconds
from atom.daemon.doctor.facts import Facts, Fit, Swarm, Ways
from atom.daemon.doctor.finding import Finding, Level
from atom.daemon.doctor.nat import ONLY_HERE, Mapping, Nat, Standing, outward, standing_of

SLOW_EXCHANGE_S = 600.0
"""Of a round: longer, and nothing is computed for most of the time."""
SLOW_BITS_PER_S = 4e6
"""Where the run's model is not known."""
_FORWARD = "forward the TCP ports of [network] listen and data_port to this box, in the router"


def way_findings(facts: Facts) -> Iterator[Finding]:
    """Nothing without a swarm that is seen."""
    if facts.ways is None or facts.swarm is None or facts.swarm.problem:
        return
    yield _bandwidth(facts.ways, facts.capacity.run)
    yield _nat(standing_of(facts.ways, facts.swarm.reached), facts.swarm)


def _bandwidth(ways: Ways, run: Fit | None) -> Finding:
    if not ways.found:
        return Finding("Bandwidth", Level.UNCHECKED, f"nobody could be asked: {ways.problem}")
    found = outward(ways)
    if not found:
        return Finding("Bandwidth", Level.UNCHECKED, f"not measured: {ONLY_HERE}")
    up = max(way.upload_bytes_per_s for way in found)
    down = max(way.download_bytes_per_s for way in found)
    said = f"at least {_mbits(up)} up, {_mbits(down)} down"
    if ways.upload_cap_bits_per_s or ways.download_cap_bits_per_s:
        said += ", within the peer file's caps"
    slowest = min(up, down)
    if run is None or not run.exchange_bytes:
        slow = 8 * slowest < SLOW_BITS_PER_S
    else:
        seconds = run.exchange_bytes / slowest
        slow = seconds > SLOW_EXCHANGE_S
        took = "less than a second" if seconds < 1 else f"about {format_seconds(round(seconds))}"
        said += f"; a round's averages take {took}"
    if not slow:
        return Finding("Bandwidth", Level.OK, said)
    fix = "use a cable, raise [network] upload and download, or join a run of a smaller model"
    return Finding("Bandwidth", Level.WARNING, said, fix)


def _nat(standing: Standing, swarm: Swarm) -> Finding:
    """What it means: nobody guesses a router's ports, so a peer is dialled, or dials, or meets
    others like it through a third."""
    match standing.nat:
        case Nat.NONE:
            direct = "others connect directly"
            means = f"{direct} unless a firewall forbids it" if swarm.reached != "yes" else direct
            return Finding("NAT", Level.OK, f"none: others see {standing.seen}; {means}")
        case Nat.FORWARDED:
            said = f"behind {standing.seen}, the port is open: others connect directly"
            return Finding("NAT", Level.OK, said)
        case Nat.BEHIND:
            said = f"behind {standing.seen}{_ports(standing)}; whether the port is open: see above"
            return Finding("NAT", Level.OK, said)
        case Nat.OUTGOING:
            said = (
                f"behind {standing.seen}, outgoing only{_ports(standing)}: trains by dialling out, "
                "and meets others like it through a third peer"
            )
            return Finding("NAT", Level.WARNING, said, _FORWARD)
        case Nat.UNKNOWN:
            return Finding("NAT", Level.UNCHECKED, f"not known: {standing.because}")


def _ports(standing: Standing) -> str:
    match standing.mapping:
        case Mapping.ONE:
            return ", not symmetric"
        case Mapping.SYMMETRIC:
            return ", symmetric"
        case Mapping.UNKNOWN:
            return ", symmetric or not is not known (one peer was asked)"


def _mbits(bytes_per_s: float) -> str:
    return f"{8 * bytes_per_s / 1e6:,.1f} Mbit/s"
