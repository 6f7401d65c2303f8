"""First values out of a folder of weights, by name, for a run that begins from them.

Every tensor of the model must be there, of its shape, finite; nothing else may be there. Buffers
are no part of the state that peers exchange: they must be the model's own. Nor is a parameter that
the loss does not use: its given values would be with nobody but the founder, so the run is refused.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atom.base.errors import ConfigError
from atom.config.run_file import RunFile
from atom.daemon.model.model_source import source_errors
from atom.daemon.model.recipe import Recipe
from atom.daemon.model.weight_files import WeightFiles
from atom.models.huggingface_config import MAX_CONFIG_BYTES
from atom.models.source import InitialValue, ModelSource, Outside, Place

CONFIG = "config.json"
_SHOWN = 3
"""Of the names that are wrong."""


def given_values(run: RunFile, source: ModelSource, folder: Path) -> InitialValue:
    """What the run's parameters are in the folder: float32, read one at a time. From any thread.

    Raises: ConfigError naming what is missing, not known, of another shape, or another model's.
    The values raise it for numbers that are none.
    """
    files = WeightFiles.open(folder)
    with source_errors(run):
        _check_config(source, folder)
        outside = source.outside(torch.float32)
        if outside.converted is not None and outside.loaded is not None:
            # Names do not tell what the numbers are: the library turns them into the model's.
            return _Loaded(folder, outside, outside.loaded(str(folder))).value
    return _matched(outside, files).value


def refuse_unused(recipe: Recipe, folder: Path) -> None:
    """Raises: ConfigError naming the folder's tensors that no peer would keep."""
    with source_errors(recipe.run):
        places = recipe.source.outside(torch.float32).places
    unused = [place.name for place in places if place.parameter not in recipe.graph.layout.by_name]
    if unused:
        raise ConfigError(
            f"{folder} holds what the loss does not use: {_some(unused)}",
            "peers keep only what they train, and an export would lack it: begin from a model "
            "and a folder without it",
        )


class _Loaded:
    """All values in memory, as the library gave them."""

    def __init__(self, folder: Path, outside: Outside, values: dict[str, Tensor]) -> None:
        """Raises: ConfigError for a buffer that is not the model's own."""
        self._folder = folder
        self._values = values
        for name, buffer in outside.buffers.items():
            _require_own(folder, name, values[name], buffer)

    def value(self, name: str, shape: tuple[int, ...]) -> Tensor:
        value = self._values[name]
        assert value.shape == shape, name
        return _finite(self._folder, name, value)


@dataclass(frozen=True)
class _Given:
    """Which tensors of the folder make up each parameter."""

    files: WeightFiles
    found: dict[str, list[tuple[str, Place]]]
    """Parameter → (name in the folder, its place), more than one if it is tied."""

    def value(self, name: str, shape: tuple[int, ...]) -> Tensor:
        (first, place), *others = self.found[name]
        value = self._read(first, place)
        assert value.shape == shape, name
        for other, its_place in others:
            if not torch.equal(self._read(other, its_place), value):
                raise ConfigError(
                    f"{self.files.folder}: {first} and {other} differ, the model ties them",
                    "set tie_word_embeddings = false in its config.json, and begin anew",
                )
        return value

    def _read(self, name: str, place: Place) -> Tensor:
        raw = self.files.value(name)
        if not raw.dtype.is_floating_point:
            raise ConfigError(f"{self.files.folder}: {name} holds {raw.dtype}, no weights")
        return _finite(self.files.folder, name, place.to_parameter(raw).to(torch.float32))


def _matched(outside: Outside, files: WeightFiles) -> _Given:
    """Raises: ConfigError."""
    in_folder = _by_full_name(outside, files)
    found: dict[str, list[tuple[str, Place]]] = {}
    misshaped = list[str]()
    for place in (*outside.places, *outside.aliases):
        found.setdefault(place.parameter, [])
        name = in_folder.pop(place.name, None)
        if name is None:
            continue
        found[place.parameter].append((name, place))
        if files.shapes[name] != place.shape:
            misshaped.append(f"{name} {list(files.shapes[name])}, not {list(place.shape)}")
    buffers = [name for name in in_folder if name in outside.buffers]
    extra = [raw for full, raw in in_folder.items() if _is_odd(full, outside)]
    missing = [place.name for place in outside.places if not found[place.parameter]]
    for what, names, hint in (
        ("does not hold", missing, "the model has more tensors than the folder"),
        ("holds what the model does not have:", extra, "the folder is of another model"),
        ("holds another shape:", misshaped, "the sizes in [model] must be the folder's"),
    ):
        if names:
            raise ConfigError(f"{files.folder} {what} {_some(names)}", hint)
    for name in buffers:
        _require_own(files.folder, name, files.value(in_folder[name]), outside.buffers[name])
    return _Given(files, found)


def _finite(folder: Path, name: str, value: Tensor) -> Tensor:
    if not bool(torch.isfinite(value).all()):
        raise ConfigError(f"{folder}: {name} has values that are no numbers")
    return value


def _require_own(folder: Path, name: str, found: Tensor, own: Tensor) -> None:
    if not torch.equal(found, own):
        raise ConfigError(
            f"{folder}: {name} is another one than the model's own",
            "it is a constant that no training changes, and that peers do not exchange",
        )


def _by_full_name(outside: Outside, files: WeightFiles) -> dict[str, str]:
    """The model's name → the folder's. Raises: ConfigError if two of the folder's are one."""
    known = {place.name for place in (*outside.places, *outside.aliases)}
    found = dict[str, str]()
    for name in sorted(files.shapes):
        full = _full(name, outside.prefix, known)
        if full in found:
            raise ConfigError(
                f"{files.folder} holds both {found[full]} and {name}, one tensor of the model",
                "leave one of them out",
            )
        found[full] = name
    return found


def _full(name: str, prefix: str, known: set[str]) -> str:
    """The name with the model's prefix, where the folder leaves it out."""
    return f"{prefix}{name}" if name not in known and f"{prefix}{name}" in known else name


def _is_odd(name: str, outside: Outside) -> bool:
    return name not in outside.buffers and not outside.ignored(name)


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _check_config(source: ModelSource, folder: Path) -> None:
    """Raises: SourceError; ConfigError."""
    path = folder / CONFIG
    if not path.exists():
        return  # names and shapes say what they can
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES + 1).decode("utf-8-sig")
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}", "check its rights") from problem
    source.require_config(text)
