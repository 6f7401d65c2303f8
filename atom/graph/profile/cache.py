"""Profiles kept on disk: one small JSON file per question.

A file is only ever a saving of time: one that cannot be read as a profile of this question is
measured anew, and whoever asked is told.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atom.graph.chain import Machine
from atom.graph.profile.measured import device_name
from atom.graph.profile.seconds import LayerProfile, OperationSeconds, Profile
from atom.graph.traced import Graph

_FORMAT = 4


@dataclass(frozen=True)
class ProfileKey:
    """What a profile depends on. Equal keys, equal profiles (up to noise)."""

    graph_hash: str
    device: str
    """`assumed` devices are not kept: they cost nothing to make anew."""
    precision: str
    batch: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, dtype and shape of every entry."""
    torch_version: str
    threads: int

    @classmethod
    def of(cls, graph: Graph, device: torch.device | str) -> "ProfileKey":
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
            torch_version=torch.__version__,
            threads=torch.get_num_threads(),
        )

    @property
    def file_name(self) -> str:
        text = json.dumps([_FORMAT, dataclasses.asdict(self)], sort_keys=True)
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
        path, note = self._directory / key.file_name, ""
        try:
            profile = _profile(json.loads(path.read_bytes()))
            if (len(profile.layers), len(profile.operations)) == (layers, operations):
                return profile, ""
            note = f"the kept profile {path} is of another model: measured anew"
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
            note = f"the kept profile {path} cannot be used ({problem}): measured anew"
        profile = measure()
        try:
            self._write(path, dataclasses.asdict(profile))
        except OSError as problem:
            note = f"the profile cannot be kept in {self._directory}: {problem.strerror}"
        return profile, note

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, allow_nan=False, indent=1)
        self._directory.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def _profile(content: Any) -> Profile:
    """Raises: what Python raises for content that `_write` does not write."""
    link = Machine(**content["link"])
    layers = tuple(LayerProfile(**each) for each in content["layers"])
    operations = tuple(OperationSeconds(**each) for each in content["operations"])
    rates = link.load_bytes_per_s, link.gradient_bytes_per_s
    times = [s for each in layers for s in (each.forward_s, each.backward_s)]
    times += [s for each in operations for s in (each.forward_s, each.backward_s)]
    if not (min(rates) > 0 and all(0 <= each < math.inf for each in (*rates, *times))):
        raise ValueError("a rate or a time that cannot be")
    return Profile(**{**content, "layers": layers, "operations": operations, "link": link})
