"""A TOML file with another value."""

import re


def with_key(text: str, dotted: str, value: str | None) -> str:
    """Return the file with this value for a key ("section.key"); None removes the key."""
    section, _, key = dotted.rpartition(".")
    head, mine = f"[{section}]\n", "" if value is None else f"{key} = {value}\n"
    before, found, below = text.partition(head)
    if not found:
        return f"{text}\n{head}{mine}"
    own, bracket, others = below.partition("\n[")
    kept = [line for line in own.splitlines() if not re.match(rf"{key}\s*=", line)]
    return f"{before}{head}{mine}" + "\n".join(kept) + f"\n{bracket}{others}"
