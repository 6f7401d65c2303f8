"""Fields of records as a stranger wrote them: bounded, well-formed, or refused by name."""

from collections.abc import Iterable

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason

MAX_TEXT_CHARACTERS = 128


def check_digest(name: str, digest: bytes, empty_allowed: bool = False) -> None:
    if len(digest) != 32 and not (empty_allowed and not digest):
        raise PeerRefused(Reason.MALFORMED, f"{name} has {len(digest)} bytes")


def incarnation_of(raw: bytes) -> bytes:
    if len(raw) != 16:
        raise PeerRefused(Reason.MALFORMED, f"incarnation has {len(raw)} bytes")
    return raw


def text_of(name: str, text: str, longest: int = MAX_TEXT_CHARACTERS) -> str:
    if len(text) > longest or not text.isprintable():
        raise PeerRefused(Reason.MALFORMED, f"{name} is too long or not printable")
    return text


def texts_of(name: str, texts: Iterable[str], most: int, longest: int) -> tuple[str, ...]:
    found = tuple(text_of(name, text, longest) for text in texts)
    if len(found) > most:
        raise PeerRefused(Reason.TOO_LARGE, f"{len(found)} {name}")
    return found
