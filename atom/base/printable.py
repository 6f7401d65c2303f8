"""What others wrote, as a terminal may show it."""


def printable(text: str, kept: str = "") -> str:
    """Without what a terminal would obey, or turn around: a "�" for each such sign, but for those
    that are `kept`."""
    return "".join(sign if sign.isprintable() or sign in kept else "�" for sign in text)
