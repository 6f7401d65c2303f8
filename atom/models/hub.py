"""The door to the Hugging Face hub: a model's files at one commit. Nothing of them is run.

The library keeps what it fetched, and goes on where it was interrupted.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from atom.models.installing import install_extra
from atom.models.source import DataError, DataUnreachable

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_PART = re.compile(r"model-\d+-of-\d+\.safetensors|model\.safetensors\.index\.json")
_ASKING_S = 30
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
    """The folder with the model's safetensors: one file, or an index and what it names, as far as
    the hub has it. Raises: DataError, also for more bytes."""
    sizes = _sizes(name, revision)
    files = [WHOLE] if WHOLE in sizes else sorted(filter(_PART.fullmatch, sizes))
    if not files:
        what = f"the hub's model {name} has no weights as safetensors"
        raise DataError(what, "choose one that has, or convert it into a folder")
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
