"""The door to the Hugging Face hub: a model's files at one commit. Nothing of them is run.

The library keeps what it fetched, and goes on where it was interrupted.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from atom.models.installing import install_extra
from atom.models.source import DataError, DataUnreachable

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_ASKING_S = 30
_MOST_INDEX_BYTES = 1 << 24
_HINT = "check its name and the network; a folder here may stand in its place"

Told = Callable[[int, int], object]
"""(bytes done, bytes in all)"""


def newest_revision(name: str, kind: Literal["model", "dataset"]) -> str:
    """The commit that OWNER/NAME is at now. Raises: DataError."""
    info = _asked(name, lambda hub: hub.repo_info(name, repo_type=kind, timeout=_ASKING_S))
    return cast(str, info.sha)


def fetch_config(name: str, revision: str) -> Path:
    """The model's config.json. Raises: DataError."""
    return _fetched(name, revision, CONFIG)


def fetch_weights(name: str, revision: str, most_bytes: int, told: Told) -> Path:
    """The folder with the model's safetensors. Raises: DataError, also for more bytes."""
    sizes = _sizes(name, revision)
    files = [WHOLE]
    if WHOLE not in sizes:
        if not sizes.get(INDEX, _MOST_INDEX_BYTES + 1) <= _MOST_INDEX_BYTES:
            what = f"the hub's model {name} has no weights as safetensors"
            raise DataError(what, "choose one that has, or convert it into a folder")
        files = [INDEX, *_named(_fetched(name, revision, INDEX))]
    if lacking := [file for file in files if file not in sizes]:
        what = f"the hub's model {name} lacks {lacking[0]!r}, which its index names"
        raise DataError(what, "choose another model or commit")
    total = sum(sizes[file] for file in files)
    if total > most_bytes:
        what = f"the hub's model {name} has {total:,} bytes of weights, more than {most_bytes:,}"
        raise DataError(what, "it is another model than the run's")
    done, folder = 0, Path()
    for file in files:
        folder = _fetched(name, revision, file, partial(_add, told, done, total)).parent
        done += sizes[file]
        told(done, total)
    return folder


def _add(told: Told, before: int, total: int, more: int) -> None:
    told(before + more, total)


def _sizes(name: str, revision: str) -> Mapping[str, int]:
    """File → bytes."""
    info = _asked(
        name,
        lambda hub: hub.model_info(name, revision=revision, files_metadata=True, timeout=_ASKING_S),
    )
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _named(index: Path) -> list[str]:
    """The files of an index. Raises: DataError."""
    try:
        return sorted({str(file) for file in json.loads(index.read_text())["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{index} is no index of weights: {error}", _HINT) from error


def _fetched(
    name: str, revision: str, file: str, told: Callable[[int], object] = lambda done: None
) -> Path:
    from_hub = _asked(
        name,
        lambda hub: hub.hf_hub_download(name, file, revision=revision, tqdm_class=_bar(told)),
    )
    return Path(from_hub)


def _bar(told: Callable[[int], object]) -> type:
    """What the library takes for a progress bar: it draws nothing."""
    library: Any = _library()

    class Bar(library.utils.tqdm):  # type: ignore[misc]
        done = 0

        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **(options | {"disable": True}))
            self.done = options.get("initial") or 0

        def update(self, n: float | None = 1) -> None:
            self.done += int(n or 0)
            told(self.done)

    return Bar


def _asked(name: str, ask: Callable[[Any], Any]) -> Any:
    """Raises: DataError."""
    library = _library()
    try:
        return ask(library.HfApi())
    except Exception as error:  # whatever the library, or its library for HTTP, raises
        first_line = str(error).strip().partition("\n")[0] or type(error).__name__
        what = f"the hub's {name} cannot be asked for: {first_line}"
        raise DataUnreachable(what, _HINT) from error


def _library() -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.utils
    except ImportError as error:
        what = "what lies on the hub needs the package huggingface_hub"
        raise DataError(what, f"`{install_extra('hf')}`") from error
    return huggingface_hub
