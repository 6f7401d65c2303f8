"""Folders of safetensors files as `transformers` writes them, and a run's first values from them.

A folder has one file, `model.safetensors`, or several files and an index that maps tensors to
files. If both exist, the single file is used, as by `transformers`. Other files are never opened,
so nothing is unpickled.

A run can begin from a folder that contains every tensor of the model, with the right shape and
finite values, and no others but those that `transformers` ignores. Peers do not exchange buffers,
so a folder's buffers must equal the model's. Parameters that the loss does not use, such as an
encoder of images, are frozen: peers keep them, and exports contain them.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from atom.base.errors import ConfigError
from atom.daemon.state_directory import StateDirectory
from atom.models.hub import CONFIG, INDEX, WHOLE, read_index
from atom.models.huggingface_config import config_text
from atom.models.source import InitialValue, ModelSource, Outside, Place, convert_weights
from atom.training.storage.disk import write_tensors

SHARD_BYTES = 2 * 10**9
"""Default limit of a written file's size. Writing may need as much memory, to convert numbers."""
ADAPTER = "adapter_model.safetensors"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")

Progress = Callable[[int, int], None]
"""Callback with (bytes done, all bytes)."""


def write_weights(
    folder: Path,
    tensors: Iterable[tuple[str, Tensor]],
    total_bytes: int,
    on_progress: Progress = lambda done, total: None,
    shard_bytes: int = SHARD_BYTES,
    whole: str = WHOLE,
) -> None:
    """Write tensors into one file, or into several files with an index.

    Args:
        folder: existing folder.
        tensors: names and tensors, which are taken one by one and written in this order.
        total_bytes: size of all tensors, for the progress.
        on_progress: called after each tensor is taken, and at the end.
        shard_bytes: largest size of a file. A larger tensor gets its own file.
        whole: name of the file if one is enough.

    Raises:
        StorageError: the disk is full or gone.
        OSError: the same, while the index is written.
    """
    names, shard, shard_size, done = list[list[str]](), dict[str, Tensor](), 0, 0

    def close_shard() -> None:
        write_tensors(folder / f"{len(names)}.partial", shard, {"format": "pt"}, synced=True)
        names.append([*shard])
        shard.clear()

    for name, tensor in tensors:
        on_progress(min(done, total_bytes), total_bytes)
        if shard and shard_size + tensor.nbytes > shard_bytes:
            close_shard()
            shard_size = 0
        # A copy, because the library refuses memory that two tensors share.
        shard[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        shard_size, done = shard_size + tensor.nbytes, done + tensor.nbytes
    close_shard()
    files = [f"model-{n:05d}-of-{len(names):05d}.safetensors" for n in range(1, len(names) + 1)]
    files = files if len(files) > 1 else [whole]
    places = dict[str, str]()
    for number, (file, of_file) in enumerate(zip(files, names, strict=True)):
        os.replace(folder / f"{number}.partial", folder / file)
        places |= dict.fromkeys(of_file, file)
    if len(files) > 1:
        index = {"metadata": {"total_size": done}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    on_progress(total_bytes, total_bytes)


@dataclass(frozen=True)
class WeightFiles:
    """Index of the tensors in a folder, which reads a tensor only when its value is requested."""

    folder: Path
    shapes: Mapping[str, tuple[int, ...]]
    """Name of the tensor → its shape."""
    _files: Mapping[str, Path]
    """Name of the tensor → its file."""

    @classmethod
    def open(cls, folder: Path) -> "WeightFiles":
        """Read names and shapes of all tensors in `folder`.

        Raises:
            ConfigError: there are no weights, or a file is missing or damaged; the message names
                it.
        """
        shapes, files = dict[str, tuple[int, ...]](), dict[str, Path]()
        for path, names in _files_in(folder).items():
            with _read_errors(path), safe_open(path, framework="pt") as file:
                for name in names or file.keys():
                    shapes[name] = tuple(file.get_slice(name).get_shape())
                    files[name] = path
        return cls(folder, shapes, files)

    def value(self, name: str) -> Tensor:
        """Return a tensor on the CPU, in the dtype of the file.

        Raises:
            ConfigError: the file cannot be read.
        """
        path = self._files[name]
        with _read_errors(path), safe_open(path, framework="pt") as file:
            found: Tensor = file.get_tensor(name)
        return found


def _files_in(folder: Path) -> dict[Path, list[str]]:
    """Return each file with the names that the index lists for it; empty without an index."""
    if (folder / WHOLE).is_file():
        return {folder / WHOLE: []}
    if (folder / INDEX).exists():
        return {folder / file: names for file, names in read_index(folder / INDEX).items()}
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", "name a folder that holds model.safetensors")
    if StateDirectory(folder).manifest.is_file():
        raise ConfigError(
            f"{folder} is the state directory of a peer",
            f"`atom export FOLDER --state {folder} --precision float32`, then --from FOLDER",
        )
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        raise ConfigError(
            f"{folder} holds weights only as {pickled[0]}, which can execute code",
            f"if you trust it: `{convert_weights(str(folder))}`, then --from FOLDER",
        )
    hint = "name a folder with weights as safetensors"
    if found := sorted(path.name for path in folder.glob("*.safetensors")):
        hint = f"get {INDEX} too, which lists the files; rename a single file to {WHOLE}"
    if found == [ADAPTER]:
        hint = "merge the adapter into its model with peft's merge_and_unload(), and save that"
    what = f"{folder} holds {found[0]}, but " if found else f"{folder} holds "
    raise ConfigError(f"{what}no {WHOLE}", hint)


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as problem:
        raise ConfigError(
            f"{path} cannot be read: {problem}", "the folder is incomplete: get it again"
        ) from problem


_SHOWN = 3
"""Number of tensors that a message names at most."""


def given_values(source: ModelSource, folder: Path) -> InitialValue:
    """Return the function that reads the model's parameters from a folder.

    Args:
        source: builds the model.
        folder: folder with safetensors files.

    Returns:
        Thread-safe function of a parameter's name and shape, which reads and returns the value as
        float32. It raises ConfigError if a value is not finite, or tied parameters differ.

    Raises:
        ConfigError: the folder's config.json describes another model.
        ConfigError: tensors are missing, unknown or misshaped, or buffers are not the model's; the
            message names them.
    """
    files, quantization = WeightFiles.open(folder), None
    if (folder / CONFIG).exists():  # without it only names and shapes are compared
        text = config_text(folder / CONFIG)
        source.require_config(text)
        quantization = json.loads(text).get("quantization_config")
    outside = source.outside(torch.float32)
    names = {name: outside.own_name(name) for name in files.shapes}
    if outside.loaded is None or not (quantization or None in names.values()):
        return _matched(outside, files, {name: full or name for name, full in names.items()})
    # The folder's tensors differ from the model's by more than names.
    values = outside.loaded(str(folder), quantization)
    for name, buffer in outside.buffers.items():
        _require_own(folder, name, values[name], buffer)
    return lambda name, shape: _finite(folder, name, values[name])


def _matched(outside: Outside, files: WeightFiles, names: Mapping[str, str]) -> InitialValue:
    """Match parameters with tensors, and return a function of values that reads the tensors.

    Args:
        outside: the folder format of the model.
        files: the tensors of the folder.
        names: name of each tensor in the folder → its name in the model.

    Raises:
        ConfigError: parameters and tensors do not match one to one.
    """
    in_folder = {full: name for name, full in sorted(names.items())}
    if twice := [name for name, full in sorted(names.items()) if in_folder[full] != name]:
        both = f"{twice[0]} and {in_folder[names[twice[0]]]}"
        what = f"{files.folder} holds both {both}: one tensor of the model"
        raise ConfigError(what, "remove one of them")
    found: dict[str, list[tuple[str, Place]]] = {}
    """Parameter → (name in the folder, place in the format); several if the parameter is tied."""
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
    known = outside.buffers
    extra = [raw for full, raw in in_folder.items() if not (full in known or outside.ignored(full))]
    missing = [place.name for place in outside.places if not found[place.parameter]]
    for what, some, hint in (
        ("does not hold", missing, "the model has more tensors than the folder"),
        ("holds tensors that the model lacks:", extra, "the folder belongs to another model"),
        ("holds other shapes:", misshaped, "the sizes in [model] must equal the folder's"),
    ):
        if some:
            raise ConfigError(f"{files.folder} {what} {_some(some)}", hint)
    for name in buffers:
        _require_own(files.folder, name, files.value(in_folder[name]), outside.buffers[name])

    def value(name: str, shape: tuple[int, ...]) -> Tensor:
        (first, place), *others = found[name]
        value = _parameter(files, first, place)
        assert value.shape == shape, name
        for other, its_place in others:
            if not torch.equal(_parameter(files, other, its_place), value):
                raise ConfigError(
                    f"{files.folder}: {first} and {other} differ, the model ties them",
                    "set tie_word_embeddings = false in its config.json, and found the run again",
                )
        return value

    return value


def _parameter(files: WeightFiles, name: str, place: Place) -> Tensor:
    raw = files.value(name)
    if not raw.dtype.is_floating_point:
        raise ConfigError(f"{files.folder}: {name} holds {raw.dtype}, not weights")
    return _finite(files.folder, name, place.to_parameter(raw).to(torch.float32))


def _finite(folder: Path, name: str, value: Tensor) -> Tensor:
    if not bool(torch.isfinite(value).all()):
        raise ConfigError(f"{folder}: {name} has values that are not finite")
    return value


def _require_own(folder: Path, name: str, found: Tensor, own: Tensor) -> None:
    if not torch.equal(found, own):
        raise ConfigError(
            f"{folder}: {name} differs from the model's",
            "it is a constant, which training does not change and peers do not exchange",
        )


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
