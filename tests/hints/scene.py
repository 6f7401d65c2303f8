"""A scene of a hint: the mistake, and the same after each remedy."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Act = Callable[[Path], object]


@dataclass
class Scene:
    """A mistake, and the same after each remedy of its hint."""

    mistake: Act
    remedies: tuple[Act, ...]


def scene(mistake: Act, *remedies: Act) -> Scene:
    return Scene(mistake, remedies)


def written(name: str, content: str | bytes, use: Callable[[Path], object]) -> Act:
    """Writes a file, then uses it."""

    def act(folder: Path) -> object:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return use(folder / name)

    return act
