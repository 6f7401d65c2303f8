"""Profiles kept on disk: one small JSON file per question, checked whenever it is read.

A file is only ever a saving of time. Whatever is wrong with one (cut off, of another version, of
another question, with a number that cannot be), the profile is made anew, and whoever asked is
told.
"""

import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atom.graph.profile.measured import device_name
from atom.graph.profile.seconds import (
    LayerProfile,
    LinkRates,
    OperationSeconds,
    Profile,
    Spread,
)
from atom.graph.traced import Graph

_FORMAT = 1
_MOST_BYTES = 64 * 2**20
_MOST_TEXT = 4096


@dataclass(frozen=True)
class ProfileKey:
    """What a profile depends on. Equal keys, equal profiles (up to noise)."""

    graph_hash: str
    device: str
    """`assumed` devices are not kept: they cost nothing to make anew."""
    precision: str
    batch: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, dtype and shape of every entry."""
    granularity: str
    torch_version: str
    threads: int

    @classmethod
    def of(
        cls, graph: Graph, device: torch.device | str, granularity: str = "layer"
    ) -> "ProfileKey":
        """For measuring the graph on this machine, in this process."""
        batch = (
            (name, str(graph.specs[node].dtype), graph.specs[node].shape)
            for node, name in graph.batch.items()
        )
        return cls(
            graph_hash=graph.graph_hash,
            device=f"{torch.device(device).type}: {device_name(device)}",
            precision=str(graph.parameter_dtype),
            batch=tuple(batch),
            granularity=granularity,
            torch_version=torch.__version__,
            threads=torch.get_num_threads(),
        )

    @property
    def json(self) -> Any:
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @property
    def file_name(self) -> str:
        text = json.dumps(self.json, sort_keys=True)
        return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


class ProfileCache:
    """Profiles by key, in a directory that is made when first written to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(
        self, key: ProfileKey, layers: int, operations: int, measure: Callable[[], Profile]
    ) -> tuple[Profile, str]:
        """The kept profile, or a new one that is kept from now on; and what there is to say.

        `layers` and `operations` are how many the profile must have. The note is empty when all
        is well, and also when there was no file; it says so if the new one cannot be kept.

        Raises: whatever `measure` raises.
        """
        path = self._directory / key.file_name
        try:
            return _read(path, key, layers, operations), ""
        except FileNotFoundError:
            note = ""
        except (OSError, ValueError) as problem:
            note = f"the kept profile {path} cannot be used ({problem}): measured anew"
        profile = measure()
        try:
            self._write(path, {"format": _FORMAT, "key": key.json, "profile": _plain(profile)})
        except OSError as problem:
            note = f"the profile cannot be kept in {self._directory}: {problem.strerror}"
        return profile, note

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._directory, prefix=".", suffix=".part")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, allow_nan=False, indent=1)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _plain(profile: Profile) -> Any:
    return dataclasses.asdict(profile)


def _read(path: Path, key: ProfileKey, layers: int, operations: int) -> Profile:
    """Raises: FileNotFoundError; OSError; ValueError for whatever is not as it should be."""
    with path.open("rb") as file:
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES} bytes")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error
    _fields(content, {"format", "key", "profile"})
    if content["format"] != _FORMAT:
        raise ValueError("written by another version")
    if content["key"] != key.json:
        raise ValueError("about something else")
    profile = _profile(content["profile"])
    if (len(profile.layers), len(profile.operations)) != (layers, operations):
        raise ValueError("not of this graph's layers and operations")
    return profile


def _profile(content: Any) -> Profile:
    _fields(content, {field.name for field in dataclasses.fields(Profile)})
    return Profile(
        source=_text(content["source"]),
        device_name=_text(content["device_name"]),
        granularity=_text(content["granularity"]),
        layers=tuple(_layer(entry) for entry in _list(content["layers"])),
        operations=tuple(_operation(entry) for entry in _list(content["operations"])),
        link=_link(content["link"]),
    )


def _layer(content: Any) -> LayerProfile:
    _fields(content, {field.name for field in dataclasses.fields(LayerProfile)})
    spreads = {name: _spread(value) for name, value in content.items() if name.endswith("_s")}
    sizes = {name: _size(value) for name, value in content.items() if name.endswith("_bytes")}
    return LayerProfile(name=_text(content["name"]), **spreads, **sizes)  # type: ignore[arg-type]


def _operation(content: Any) -> OperationSeconds:
    _fields(content, {"forward_s", "backward_s"})
    return OperationSeconds(_number(content["forward_s"]), _number(content["backward_s"]))


def _link(content: Any) -> LinkRates:
    _fields(content, {"load_bytes_per_s", "gradient_bytes_per_s"})
    load = _spread(content["load_bytes_per_s"])
    gradient = _spread(content["gradient_bytes_per_s"])
    if not (load.low > 0 and gradient.low > 0):
        raise ValueError("a rate of zero")
    return LinkRates(load, gradient)


def _spread(content: Any) -> Spread:
    _fields(content, {"median", "low", "high"})
    spread = Spread(*(_number(content[name]) for name in ("median", "low", "high")))
    if not spread.low <= spread.median <= spread.high:
        raise ValueError("a median outside its quartiles")
    return spread


def _fields(content: Any, names: set[str]) -> None:
    if not isinstance(content, dict) or content.keys() != names:
        raise ValueError(f"not an object of {', '.join(sorted(names))}")


def _list(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise ValueError("not a list")
    return content


def _text(content: Any) -> str:
    if not isinstance(content, str) or len(content) > _MOST_TEXT:
        raise ValueError("not a short text")
    return content


def _number(content: Any) -> float:
    if isinstance(content, bool) or not isinstance(content, int | float):
        raise ValueError(f"{str(content)[:40]!r} is no number")
    if not 0 <= content <= sys.float_info.max:  # an integer may be larger than any float
        raise ValueError(f"{str(content)[:40]} is no amount")
    return float(content)


def _size(content: Any) -> int:
    if isinstance(content, bool) or not isinstance(content, int) or content < 0:
        raise ValueError(f"{str(content)[:40]!r} is no number of bytes")
    return content
