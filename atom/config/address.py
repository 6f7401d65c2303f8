"""Names of runs, and addresses as people write them: HOST:PORT, [IPv6]:PORT, or a host alone."""

import ipaddress
import re

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
"""Pattern of a run's name, as used in its run file, its address and its folder names."""
_HOST = re.compile(r"(?!.{254})([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")


def parse_host_port(text: str) -> tuple[str, int]:
    """Split "0.0.0.0:31337" or "[::1]:31337" into host and port; port 0 means any free port.

    Raises:
        ValueError: the text is not HOST:PORT; its message says why.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not HOST:PORT, for example 0.0.0.0:31337")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16):
        raise ValueError(f"{port!r} in {text!r} is not a port between 0 and 65535")
    return parse_host(host), int(port)


def parse_host(text: str) -> str:
    """Check a host name, an IPv4 address or a bracketed IPv6 address; return it without brackets.

    Raises:
        ValueError: the text is none of these.
    """
    if text.startswith("[") and text.endswith("]") and ":" in text:
        return parse_interface(text[1:-1])
    if not _HOST.fullmatch(text):
        raise ValueError(f"{text!r} is not a host; write a name, 192.0.2.1 or [2001:db8::1]")
    return text


def parse_interface(text: str) -> str:
    """Check the syntax of an address or host name to listen on; IPv6 with brackets or without.

    Raises:
        ValueError: the text is neither an address nor a host name.
    """
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return parse_host(text)


def parse_announcement(text: str) -> None:
    """Check that `text` is HOST or HOST:PORT.

    Raises:
        ValueError: the text is neither.
    """
    if ":" in text and not text.endswith("]"):
        parse_host_port(text)
    else:
        parse_host(text)
