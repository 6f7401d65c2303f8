"""Export of a peer's snapshot to a folder that `transformers` loads.

The daemon may run during an export: the files of snapshots are complete and never change. The
folder is written under a temporary name and renamed when it is complete.
"""

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atom.base.errors import ConfigError, ModelError, StorageError
from atom.base.files import expand_home
from atom.config.run_file import PinnedRun
from atom.daemon.console import Console
from atom.daemon.model.kept_run import LATEST, HeldWeights, KeptRun
from atom.daemon.model.recipe import PRECISIONS
from atom.daemon.model.sampled import run_tokenizer
from atom.daemon.model.weight_files import ADAPTER, SHARD_BYTES, write_weights
from atom.models.data.tokenizer import JsonTokenizer, byte_level_tokenizer
from atom.models.data.tokenizer_settings import CONFIG as TOKENIZER_CONFIG
from atom.models.data.tokenizer_settings import GENERATION
from atom.models.hub import CONFIG, WHOLE
from atom.models.partly_trained import PartlyTrained
from atom.models.source import ModelSource, Outside, Place

NO_CONFIG = "the folder holds the state dict of the owner's module: transformers does not load it"
NO_BASE = "set base_model_name_or_path in adapter_config.json, which this peer does not know"


def export_run(
    target: Path,
    state: Path,
    console: Console,
    precision: str | None = None,
    trust: str | None = None,
    begins: Callable[[], None] = lambda: None,
    adapter: bool = False,
    wanted: str = LATEST,
) -> Path:
    """Export the weights of one round from a state directory to a new folder.

    Args:
        target: the folder, which must not exist.
        state: the state directory of a peer.
        console: shows notes and progress.
        precision: key of PRECISIONS for the exported numbers; None: the run's precision.
        trust: value of `--trust`, for a run whose model is code of its owner; None: not given.
        begins: called right before the folder is created.
        adapter: True to write the run's adapters alone, for `peft`; False to add them to the model.
        wanted: number of the round, as text; LATEST; or BEST, by validation loss.

    Returns:
        The absolute path of the folder.

    Raises:
        StorageError: the folder cannot be written, or the state is missing or damaged.
        ConfigError: the model cannot be built, or has no such export.
        MismatchError: this installation builds another model than the run's.
        ModelError: the model cannot be traced, or a number does not fit into the precision.
        TrustError: the model is code that may not run here.
    """
    target = expand_home(target).absolute()
    require_new(target)
    kept = KeptRun.read(state, console.note)
    source, snapshot, weights = kept.opened(trust, wanted)
    precision = precision or kept.run.model.precision
    console.note(f"exporting round {snapshot.round} of {kept.run.run.name}, once it is checked")
    dtype = PRECISIONS[precision]
    outside = _adapter(kept, source, console) if adapter else source.outside(dtype)
    if outside.config is None:
        console.note(NO_CONFIG)
    tensors: Iterable[tuple[str, Tensor]] = _tensors(
        outside, partial(_tensor_at, source, weights, dtype)
    )
    if outside.converted is not None:
        tensors = outside.converted(dict(tensors)).items()
    elements = sum(math.prod(place.shape) for place in outside.places)
    total_bytes = elements * dtype.itemsize + sum(each.nbytes for each in outside.buffers.values())
    begins()
    with folder_aside(target) as folder:
        told = partial(console.progress, "writing")
        limit, whole = (sys.maxsize, ADAPTER) if adapter else (SHARD_BYTES, WHOLE)
        write_weights(folder, tensors, total_bytes, told, limit, whole)
        _write_texts(folder, kept, outside, precision, adapter)
    return target


def _adapter(kept: KeptRun, source: ModelSource, console: Console) -> Outside:
    """Return the folder format of the run's adapters. Raises: ConfigError."""
    if not isinstance(source, PartlyTrained):
        raise ConfigError("the run trains no adapters", "omit --adapter")
    (places, config), model = source.adapter(), kept.run.model
    path, base, revision = kept.state.base, None, None
    if path.is_file():
        base = os.fsdecode(path.read_bytes())
    if model.weights == "hub":
        base, revision = model.huggingface, model.revision
    if base is None:
        console.note(NO_BASE)
    return Outside(places, {**config, "base_model_name_or_path": base, "revision": revision})


def _tensor_at(
    source: ModelSource, weights: HeldWeights, dtype: torch.dtype, place: Place
) -> Tensor:
    """Return the tensor that a folder has at this place.

    Raises:
        ModelError: a number is too large for the dtype.
    """
    name = place.parameter
    added = source.added(name, lambda each: weights.value(each, torch.float32))
    found = weights.value(name, dtype)
    if added is not None:
        found = (weights.value(name, torch.float32) + added).to(dtype)
    if not bool(torch.isfinite(found).all()):
        raise ModelError(
            f"{name} has numbers beyond {str(dtype).removeprefix('torch.')}",
            "export with --precision float32",
        )
    return place.from_parameter(found)


def _tensors(
    outside: Outside, tensor_at: Callable[[Place], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a folder with the names under which they are written."""
    for place in outside.places:
        yield outside.written_names.get(place.name, place.name), tensor_at(place)
    for name, buffer in outside.buffers.items():
        yield outside.written_names.get(name, name), buffer


def _write_texts(
    folder: Path, kept: KeptRun, outside: Outside, precision: str, adapter: bool
) -> None:
    generation = _write_tokenizer(folder, kept.run, kept.state.tokenizer)
    if outside.config is not None:
        config = dict(outside.config) if adapter else {**outside.config, "dtype": precision}
        if config.get("eos_token_id", "says nothing of it") is None:
            # Without this token generating would never end.
            config["eos_token_id"] = generation.get("eos_token_id")
        _write_json(folder / ("adapter_config.json" if adapter else CONFIG), config)
        if generation and not adapter:
            _write_json(folder / GENERATION, generation)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_tokenizer(folder: Path, run: PinnedRun, kept: Path) -> dict[str, Any]:
    """Write the run's tokenizer and its settings into a folder of weights, if it trains on text.

    Args:
        folder: the folder.
        run: the run.
        kept: path of the run's tokenizer in the state directory.

    Returns:
        The content of generation_config.json; empty if no token ends an answer.

    Raises:
        OSError: the files cannot be written.
        StorageError: the kept tokenizer is not the run's.
    """
    if run.data.source == "module":
        return {}
    tokenizer = run_tokenizer(run, kept)
    if not isinstance(tokenizer, JsonTokenizer):
        (folder / "tokenizer.json").write_text(byte_level_tokenizer(), encoding="utf-8")
        _write_json(folder / TOKENIZER_CONFIG, _tokenizer_config(run, {}))
        return {}
    (folder / "tokenizer.json").write_bytes(tokenizer.content)
    own = tokenizer.settings.get(TOKENIZER_CONFIG, {})
    if tokenizer.end and not tokenizer.special("eos_token"):
        own = own | {"eos_token": tokenizer.token(tokenizer.end[-1])}
    files = {**tokenizer.settings, TOKENIZER_CONFIG: _tokenizer_config(run, own)}
    generation = dict(files.pop(GENERATION, {}))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            _write_json(path, content)
    if ends := run.data.answer_ends:
        generation["eos_token_id"] = list(ends) if len(ends) > 1 else ends[0]
    for pad in tokenizer.special("pad_token"):
        generation.setdefault("pad_token_id", pad)
    return generation


def _tokenizer_config(run: PinnedRun, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer_config.json with the run's own keys, for a class that reads JSON."""
    return {
        "model_max_length": run.model.sequence_tokens,
        "clean_up_tokenization_spaces": False,
        **own,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def require_new(target: Path) -> None:
    """Raise unless `target` can be created as a new folder.

    Raises:
        StorageError: it exists, or a file is in its path.
    """
    if os.path.lexists(target):
        raise StorageError(f"{target} is already there", "name a new folder")
    above = next(each for each in target.parents if os.path.lexists(each))
    if not above.is_dir():
        raise StorageError(f"{above} is a file, not a folder", "choose another folder")


@contextmanager
def folder_aside(target: Path) -> Iterator[Path]:
    """Create a temporary folder that becomes `target` at the end, or is removed after an error.

    Args:
        target: absolute path that does not exist.

    Raises:
        StorageError: the disk is full or cannot be written, or the temporary folder exists:
            another export to the same target runs, or was killed.
    """
    aside = target.parent / f".{target.name}.partial"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
    except FileExistsError as problem:
        raise StorageError(
            f"{aside} exists: another export writes it, or was killed while writing",
            "remove it if no export is running",
        ) from problem
    except OSError as problem:
        raise _unwritable(target, problem) from problem
    try:
        yield aside
        for path in aside.glob("*.safetensors"):  # the library lets only their owner read them
            path.chmod(aside.stat().st_mode & 0o666)
        os.replace(aside, target)
    except OSError as problem:
        raise _unwritable(target, problem) from problem
    finally:  # also when interrupted
        shutil.rmtree(aside, ignore_errors=True)


def _unwritable(target: Path, problem: OSError) -> StorageError:
    return StorageError(
        f"cannot write {target}: {problem.strerror}", "free some space, or choose another folder"
    )
