"""Text from other peers and programs, made safe to show in a terminal."""


def printable(text: str, allowed: str = "") -> str:
    """Replace every non-printable character by "�".

    Escape sequences could otherwise command the terminal, and direction marks reverse the text.

    Args:
        text: text that another peer or program wrote.
        allowed: non-printable characters to leave in place, such as tabs.
    """
    return "".join(c if c.isprintable() or c in allowed else "�" for c in text)
