"""Downloads from the Hugging Face hub: a model's files at one commit. No code of them is executed.

Only this module imports `huggingface_hub`. The library caches files and resumes interrupted
downloads.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from atom.base.errors import AddressError, ConfigError
from atom.models.source import convert_weights, needs_extra

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_WAIT_S = 30
"""Timeout of one request, in seconds."""
_HINT = "check its name and the network; or name a local folder instead"

ByteProgress = Callable[[int, int], object]
"""Progress callback: (bytes done, bytes in total)."""


def newest_revision(name: str, kind: Literal["model", "dataset"]) -> str:
    """Return the newest commit of OWNER/NAME on the hub, 40 hex digits.

    Raises:
        AddressError: the hub cannot be reached, or does not have OWNER/NAME.
    """
    info = _ask(name, lambda hub: hub.repo_info(name, repo_type=kind, timeout=_WAIT_S))
    return cast(str, info.sha)


def fetch_config(name: str, revision: str) -> Path:
    """Fetch a model's config.json and return its path.

    Raises:
        AddressError: the hub cannot be reached, or does not have the file.
    """
    return _fetched(name, revision, CONFIG)


def fetch_weights(name: str, revision: str, most_bytes: int, on_progress: ByteProgress) -> Path:
    """Fetch a model's safetensors and return their folder.

    The weights are one file, or an index and the files that it names.

    Args:
        name: OWNER/NAME on the hub.
        revision: commit, 40 hex digits.
        most_bytes: maximum total size of the weights.
        on_progress: called as bytes arrive.

    Raises:
        ConfigError: the model has no safetensors, lacks a file of its index, or exceeds
            `most_bytes`.
        AddressError: the hub cannot be reached.
    """
    sizes = _sizes(name, revision)
    files = [each for each in (WHOLE, INDEX) if each in sizes][:1]
    if not files:
        what = f"the hub's model {name} has no weights as safetensors"
        made = 'then set huggingface = "FOLDER/config.json" and start with --from FOLDER'
        raise ConfigError(what, f"convert them: `{convert_weights(name)}`; {made}")
    if files == [INDEX] and sizes[INDEX] <= most_bytes:
        files += read_index(_fetched(name, revision, INDEX))
    if missing := sorted({*files} - sizes.keys()):
        what = f"the hub's model {name} lacks {missing[0]}, which its index names"
        raise ConfigError(what, "choose another revision, or another model")
    total = sum(sizes[file] for file in files)
    if total > most_bytes:
        what = f"the hub's model {name} has {total:,} bytes of weights, more than {most_bytes:,}"
        raise ConfigError(what, "it is another model than the run's")
    done, folder = 0, Path()
    for file in files:
        folder = _fetched(name, revision, file, partial(_report, on_progress, done, total)).parent
        done += sizes[file]
        on_progress(done, total)
    return folder


def read_index(path: Path) -> dict[str, list[str]]:
    """Return file name → names of its tensors, as an index of weights lists them.

    Raises:
        ConfigError: the file is no index, or names anything but safetensors files beside it.
    """
    hint, files = "the folder is incomplete: get it again", dict[str, list[str]]()
    try:
        for name, file in json.loads(path.read_text(encoding="utf-8"))["weight_map"].items():
            files.setdefault(str(file), []).append(str(name))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ConfigError(f"{path} is not an index of weights: {problem}", hint) from problem
    for file in files:
        if Path(file).name != file or not file.endswith(".safetensors") or not file.isprintable():
            raise ConfigError(f"{path} names {file!r}, not a safetensors file in its folder", hint)
    return files


def _report(on_progress: ByteProgress, before: int, total: int, of_file: int) -> None:
    """Report the progress within one file, after `before` bytes of other files."""
    on_progress(before + of_file, total)


def _sizes(name: str, revision: str) -> Mapping[str, int]:
    """Return name → size in bytes of the model's files. Raises: ConfigError."""
    info = _ask(
        name,
        lambda hub: hub.model_info(name, revision=revision, files_metadata=True, timeout=_WAIT_S),
    )
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _fetched(
    name: str, revision: str, file: str, report: Callable[[int], object] = lambda done: None
) -> Path:
    from_hub = _ask(
        name,
        lambda hub: hub.hf_hub_download(name, file, revision=revision, tqdm_class=_bar(report)),
    )
    return Path(from_hub)


def _bar(report: Callable[[int], object]) -> type:
    """Return a progress-bar class for the library that calls `report` and draws nothing."""
    library: Any = _library()

    class Bar(library.utils.tqdm):  # type: ignore[misc]
        done = 0

        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **(options | {"disable": True}))
            self.done = options.get("initial") or 0

        def update(self, n: float | None = 1) -> None:
            self.done += int(n or 0)
            report(self.done)

    return Bar


def _ask(name: str, request: Callable[[Any], Any]) -> Any:
    """Return `request(api)`.

    Raises:
        AddressError: the library raises any error.
    """
    library = _library()
    try:
        return request(library.HfApi())
    except Exception as error:  # the library and its HTTP client raise many kinds
        first_line = str(error).strip().partition("\n")[0] or type(error).__name__
        what = f"cannot query {name} on the hub: {first_line}"
        raise AddressError(what, _HINT) from error


def _library() -> ModuleType:
    with needs_extra("hf", "the hub"):
        import huggingface_hub
        import huggingface_hub.utils
    return huggingface_hub
