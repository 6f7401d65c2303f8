"""A cap of host memory that is none: the box does not have so much. Pure."""

from atom.base.units import format_bytes


def more_than_there_is(cap_bytes: int | None, total_bytes: int) -> str:
    """What the owner of such a cap is told; empty: it is within what the box has. A word, no error:
    there may be swap, and more memory by the next start. `cap_bytes`: [host] memory of the peer
    file."""
    if cap_bytes is None or cap_bytes <= total_bytes:
        return ""
    cap, total = format_bytes(cap_bytes), format_bytes(total_bytes)
    return f"[host] memory allows {cap}, this box has {total}: what is beyond may end the daemon"
