"""Who is put aside for what it did, and for how long. Pure."""

LONGEST_HOLD_S = 600.0


def hold_s(first_s: float, times: int) -> float:
    """Seconds aside: doubled with each time, and never very long."""
    return min(first_s * 2.0 ** min(times - 1, 30), LONGEST_HOLD_S)
