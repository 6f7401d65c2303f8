"""Any PyTorch module as a model source: a factory in the run's own code builds it.

The factory is called whenever a model is needed, each time from the same random state. It returns
`(module, example_batch)` or `(module, example_batch, dataset)`. Its values are the run's initial
values, so a second copy of the model needs memory while they are read. If the factory builds on
`meta`, modules are initialised one by one through `reset_parameters`, without that extra memory.

The code is one source file. Reading the file is safe; loading it executes it. The founder's file is
found as Python would import it; all other peers receive its bytes. Both load it in the same way,
from the bytes that were hashed, so no other file can be executed instead.
"""

import hashlib
import importlib
import importlib.util
import linecache
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atom.base.errors import ConfigError
from atom.base.files import read_bounded
from atom.models.on_meta import drop_values, first_values, reset, seeded
from atom.models.source import Answer, Batch, InitialValue, ModelSource, Outside, outside_of

MAX_CODE_BYTES = 64 * 1024
"""Maximum size of a source file, because it is sent to every peer."""
TEXT_ENTRIES = (("tokens", "targets"), ("input_ids", "labels"))
"""Entries that a module without a dataset takes, int64 [sequences, sequence_tokens].

The first pair is the tokens and the next ones. The second pair is the tokens twice, for modules
that shift labels themselves, as in `transformers`.
"""
_MOST_SAMPLES = 2**53
"""Maximum size of a dataset that a manifest can state."""
_SHAPE = "return module, example_batch — or module, example_batch, dataset"


@dataclass(frozen=True)
class OwnCode:
    """Name of a factory, and the source file that defines it."""

    entry: str
    """Name of the factory: "package.module:factory"."""
    content: bytes
    """Bytes of the source file."""
    path: Path
    """Path of the file, for messages and tracebacks only."""

    @property
    def sha256(self) -> str:
        """Hex digest of the content."""
        return hashlib.sha256(self.content).hexdigest()

    def trust_of(self, owner: str) -> str:
        """Return the value of `--trust` that allows this code of this owner, and no other code.

        A key alone would allow everything that its owner, or a thief of the key, signs later.
        """
        return f"{owner}:{self.sha256}"


def find_code(entry: str, folder: Path) -> OwnCode:
    """Find and read the founder's source file, with `folder` first on Python's path.

    Packages that contain the module are imported, and so executed.

    Args:
        entry: name of the factory, "package.module:factory".
        folder: folder to search before the installed packages.

    Raises:
        ConfigError: there is no such file, a package fails, or the file is too long.
    """
    name = entry.partition(":")[0]
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    hint = f"Atom searches {folder} and the installed packages"
    with own_code_errors(f"module {name} cannot be imported", hint):
        spec = importlib.util.find_spec(name)  # executes the packages that contain the module
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ConfigError(f"module {name} cannot be imported: there is no such Python file", hint)
    return read_code(entry, Path(spec.origin))


def read_code(entry: str, path: Path) -> OwnCode:
    """Read a source file without executing it.

    Raises:
        ConfigError: the file cannot be read or is too long.
    """
    too_long = "joining peers receive only this file: move general code into an installed package"
    return OwnCode(entry, read_bounded(path, MAX_CODE_BYTES, too_long), path)


def kept_code(entry: str, path: Path, sha256: str | None) -> OwnCode | None:
    """Return the source file at `path` if it has this digest in hex, else None."""
    try:
        code = read_code(entry, path)
    except ConfigError:
        return None
    return code if code.sha256 == sha256 else None


def load_factory(code: OwnCode) -> Callable[[], Any]:
    """Execute the code and return its factory; the caller must have checked that it is trusted.

    Raises:
        ConfigError: the code fails (the message names the line), or its factory is missing or
            cannot be called.
    """
    name, _, attribute = code.entry.partition(":")
    module = types.ModuleType(f"atom_own_code_{code.sha256[:12]}")
    module.__file__ = str(code.path)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    lines = code.content.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[str(code.path)] = (len(code.content), None, lines, str(code.path))
    hint = "import only installed packages: other peers receive this file alone"
    with own_code_errors(f"module {name} cannot be imported", hint, code.path):
        exec(compile(code.content, str(code.path), "exec"), module.__dict__)
    factory: Callable[[], Any] | None = getattr(module, attribute, None)
    if not callable(factory):
        what = f"{code.path} defines no function {attribute}"
        raise ConfigError(what, f"add def {attribute}(): … to it, without arguments")
    return factory


@contextmanager
def own_code_errors(what: str, hint: str, path: Path | None = None) -> Iterator[None]:
    """Turn any error of the owner's code within the context into a ConfigError.

    Args:
        what: what failed, for the message.
        hint: advice to the owner.
        path: the source file, whose deepest line in the traceback is named; None: no line.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # such code may raise anything
        first_line = str(error).strip().partition("\n")[0][:200]
        text = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
        place = place_in(path, error) if path else ""
        raise ConfigError(f"{what}: {text}{place}", hint) from error


def place_in(path: Path, error: BaseException) -> str:
    """Return " at FILE:LINE (source line)" of the error's deepest frame in `path`, else ""."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.lineno:
        return f" at {path}:{error.lineno}"
    return f" at {path}:{own[-1].lineno} ({own[-1].line})" if own else ""


class ModuleSource(ModelSource):
    """`ModelSource` that calls a factory in the run's own code."""

    def __init__(self, code: OwnCode, seed: int, sequence_tokens: int | None) -> None:
        """Run the factory once, for its example batch and its dataset.

        Args:
            code: the source file and the name of the factory in it.
            seed: seed of the random state from which the factory runs.
            sequence_tokens: tokens per sequence of the run's text; None: the factory returns a
                dataset.

        Raises:
            ConfigError: the code fails or returns something else than expected.
        """
        self.name = code.entry
        self._path, self._factory, self._seed = code.path, load_factory(code), seed
        _, example, self.dataset = self._built(seed)
        if (sequence_tokens is None) != (self.dataset is not None):
            raise ConfigError(
                f"{code.entry} returned {'no' if self.dataset is None else 'a'} dataset",
                'return a dataset if the run has [data] source = "module", and only then',
            )
        if sequence_tokens is not None:
            _check_text_entries(code.entry, example, sequence_tokens)
        self.example = {name: value.to("meta") for name, value in example.items()}
        """Example batch on `meta`, with as many sequences as the factory chose."""
        # The version of transformers decides the model if the code imported it.
        if library := sys.modules.get("transformers"):
            self.packages = (("transformers", str(library.__version__)),)

    def build(self, dtype: torch.dtype) -> nn.Module:
        module, *_ = self._built(self._seed)
        for part in module.modules():  # `module.to(dtype)` would copy the parameters as well
            for key, buffer in part._buffers.items():
                if buffer is not None and buffer.dtype.is_floating_point:
                    part._buffers[key] = buffer.to(dtype)
        drop_values(module, dtype)
        return module

    def example_batch(self, sequences: int) -> Batch:
        return {
            name: torch.zeros((sequences, *value.shape[1:]), dtype=value.dtype, device="meta")
            for name, value in self.example.items()
        }

    def text_batch(self, text: Batch) -> Batch:
        if set(self.example) == set(TEXT_ENTRIES[1]):
            return {"input_ids": text["tokens"], "labels": text["tokens"].clone()}
        return super().text_batch(text)

    def next_logits(self, model: nn.Module) -> Answer:
        """Return an `Answer` that calls the module's own `logits` method.

        Raises:
            ConfigError: the module has no such method, or its data is not text.
        """
        logits: Any = getattr(model, "logits", None)
        if self.dataset is not None or not callable(logits):
            return super().next_logits(model)
        return lambda tokens, last: logits(tokens).index_select(1, last).flatten(0, 1)

    def initial_values(self, seed: int) -> InitialValue:
        module, *_ = self._built(seed)
        values = {name: value.detach() for name, value in module.named_parameters()}
        initialised = first_values(module, reset, seed)

        def value_of(name: str, shape: tuple[int, ...]) -> Tensor:
            value = values[name]
            return initialised(name, shape) if value.is_meta else value.to("cpu", torch.float32)

        return value_of

    def outside(self, dtype: torch.dtype) -> Outside:
        return outside_of(self.build(dtype))

    def _built(self, seed: int) -> tuple[nn.Module, Mapping[str, Tensor], Any | None]:
        """Call the factory and return (module, example batch, dataset). Raises: ConfigError."""
        hint = "the factory is called without arguments"
        with own_code_errors(f"{self.name} failed", hint, self._path), seeded(f"{seed}:factory"):
            returned = self._factory()
        several = isinstance(returned, tuple) and len(returned) in (2, 3)
        if not several or not isinstance(returned[0], nn.Module):
            kinds = returned if isinstance(returned, tuple) else [returned]
            raise ConfigError(f"{self.name} returned {', '.join(map(_kind, kinds))}", _SHAPE)
        module, example, dataset = (*returned, None)[:3]
        _check_example(self.name, example)
        if dataset is not None:
            _check_dataset(self.name, dataset)
        return module, example, dataset


def _kind(value: Any) -> str:
    return f"an object of type {type(value).__name__}"


def _check_example(name: str, example: Any) -> None:
    hint = 'return, for example, {"tokens": torch.zeros(2, 128, dtype=torch.int64), …}'
    if not isinstance(example, dict) or not example:
        raise ConfigError(f"{name} returned {_kind(example)} as its example batch", hint)
    sizes = set()
    for key, value in example.items():
        if not isinstance(key, str) or not isinstance(value, Tensor) or not value.dim():
            raise ConfigError(f"{name}'s example batch has {key!r}: {_kind(value)}", hint)
        sizes.add(value.shape[0])
    if len(sizes) > 1 or 0 in sizes:
        raise ConfigError(
            f"{name}'s example batch has entries of {sorted(sizes)} sequences",
            "the first dimension of every entry must be the same number of sequences, at least 1",
        )


def _check_dataset(name: str, dataset: Any) -> None:
    hint = "a dataset needs __len__(), and __getitem__(index), which returns a dict of tensors"
    with own_code_errors(f"{name} returned a dataset without a length", hint):
        count = len(dataset)  # refuses negative and too large results, too
    if not 0 < count <= _MOST_SAMPLES:
        raise ConfigError(
            f"{name} returned a dataset of {count:,} samples",
            f"__len__() must return 1 to {_MOST_SAMPLES:,}; the latter suits an endless stream",
        )


def _check_text_entries(name: str, example: Mapping[str, Tensor], sequence_tokens: int) -> None:
    allowed = " or ".join(" and ".join(entries) for entries in TEXT_ENTRIES)
    if set(example) not in [set(entries) for entries in TEXT_ENTRIES]:
        raise ConfigError(
            f"{name}'s example batch has {', '.join(sorted(example))}; text comes as {allowed}",
            'name its entries like that, or return a dataset and set [data] source = "module"',
        )
    for key, value in example.items():
        if value.dtype != torch.int64 or value.shape[1:] != (sequence_tokens,):
            what = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
            raise ConfigError(
                f"{name}'s example batch has {key}: {what}",
                f"make it int64 [sequences, {sequence_tokens}], or set [model] sequence_tokens",
            )
