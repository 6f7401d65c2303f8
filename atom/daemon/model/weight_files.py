"""Weights by name in a folder of safetensors files, as `transformers` names and splits them.

One file, `model.safetensors`; or several and an index that says which tensor is where. Where both
are, the one file counts, as for `transformers`. Nothing is unpickled: other files are not opened.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from atom.base.errors import ConfigError, StorageError
from atom.base.files import why_not_written
from atom.training.storage.disk import sync

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 2 * 10**9
"""Of one file: as much is in memory at once, where numbers are converted."""
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)"""


@dataclass(frozen=True)
class Piece:
    """A tensor to be written."""

    name: str
    size_bytes: int
    make: Callable[[], Tensor]
    """Its value, asked for when its file is written."""


def write_weights(
    folder: Path,
    pieces: Sequence[Piece],
    on_progress: Progress = lambda done, total: None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes one file, or several of at most `shard_bytes` (a larger tensor has one of its own) and
    their index, in the order given. Raises: StorageError when the disk is full or gone.
    """
    shards, total = _shards(pieces, shard_bytes), sum(piece.size_bytes for piece in pieces)
    names = [WHOLE] if len(shards) == 1 else _shard_names(len(shards))
    done, places = 0, dict[str, str]()
    with _disk_errors(folder):
        for name, shard in zip(names, shards, strict=True):
            made = dict[str, Tensor]()
            for piece in shard:
                on_progress(done, total)
                made[piece.name] = piece.make()
                done += piece.size_bytes
            _write_synced(folder / name, made)
            places |= {piece.name: name for piece in shard}
        if len(shards) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": places}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    on_progress(total, total)


@dataclass(frozen=True)
class WeightFiles:
    """What a folder holds, by name; values are read when they are asked for."""

    folder: Path
    shapes: Mapping[str, tuple[int, ...]]
    _files: Mapping[str, Path]

    @classmethod
    def open(cls, folder: Path) -> "WeightFiles":
        """Raises: ConfigError naming what is missing or does not read."""
        shapes, files = dict[str, tuple[int, ...]](), dict[str, Path]()
        for path, wanted in _files_in(folder).items():
            with _read_errors(path), safe_open(path, framework="pt") as file:
                held = set(file.keys())
                if wanted is not None and held != wanted:
                    odd = sorted(held ^ wanted)[0]
                    raise ConfigError(
                        f"{folder / INDEX} and {path.name} do not agree on {odd}",
                        "the folder is not whole: get it again",
                    )
                for name in held:
                    shapes[name] = tuple(file.get_slice(name).get_shape())
                    files[name] = path
        return cls(folder, shapes, files)

    def value(self, name: str) -> Tensor:
        """On the CPU, in the file's own number format. Raises: ConfigError."""
        with _read_errors(self._files[name]):
            with safe_open(self._files[name], framework="pt") as file:
                found: Tensor = file.get_tensor(name)
            return found


def _shards(pieces: Sequence[Piece], shard_bytes: int) -> list[list[Piece]]:
    shards: list[list[Piece]] = [[]]
    held = 0
    for piece in pieces:
        if shards[-1] and held + piece.size_bytes > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(piece)
        held += piece.size_bytes
    return shards


def _shard_names(count: int) -> list[str]:
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _write_synced(path: Path, tensors: dict[str, Tensor]) -> None:
    whole = dict[str, Tensor]()
    places = set[int]()
    for name, value in tensors.items():
        own = value.detach().contiguous()
        # A tied tensor that is to be there twice: the library refuses shared memory.
        whole[name] = own.clone() if own.data_ptr() in places else own
        places.add(own.data_ptr())
    save_file(whole, path, metadata={"format": "pt"})
    sync(path)


def _files_in(folder: Path) -> dict[Path, set[str] | None]:
    """File → names that the index promises of it; None: no index counts."""
    if (folder / WHOLE).is_file():
        return {folder / WHOLE: None}
    if (folder / INDEX).exists():
        return {folder / name: wanted for name, wanted in _read_index(folder / INDEX).items()}
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder", "name one that holds model.safetensors")
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        raise ConfigError(
            f"{folder} holds weights as {pickled[0]} only, which is a program to be run",
            "load it where you trust it, with transformers, and save_pretrained() it again",
        )
    raise ConfigError(f"{folder} holds no {WHOLE}", "name a folder with weights as safetensors")


def _read_index(path: Path) -> dict[str, set[str]]:
    hint = "the folder is not whole: get it again"
    try:
        places = json.loads(path.read_text(encoding="utf-8"))["weight_map"].items()
        files: dict[str, set[str]] = {}
        for name, file in places:
            files.setdefault(str(file), set()).add(str(name))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ConfigError(f"{path} is no index of weights: {problem}", hint) from problem
    for file in files:
        if Path(file).name != file or not file.endswith(".safetensors") or not file.isprintable():
            raise ConfigError(f"{path} names {file!r}, no safetensors file beside it", hint)
    return files


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as problem:
        raise ConfigError(
            f"{path} cannot be read: {problem}", "the folder is not whole: get it again"
        ) from problem


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as problem:
        raise StorageError(
            f"cannot write into {folder}: {why_not_written(problem)}",
            "free some space, or choose another folder",
        ) from problem


def size_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Of a tensor."""
    return dtype.itemsize * math.prod(shape)
