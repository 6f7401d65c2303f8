"""Any PyTorch module as a model source: a factory in the run's own code builds it.

The factory is called whenever a model is needed, each time from the same random state. It returns
`(module, example_batch)` or `(module, example_batch, dataset)`. Its values are the run's initial
values, so a second copy of the model needs memory while they are read. If the factory builds on
`meta`, modules are initialised one by one through `reset_parameters`, without that extra memory.
"""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from atom.models.first_values import FirstValues, reset, seeded
from atom.models.on_meta import drop_values
from atom.models.own_code import OwnCode, load_factory, place_in
from atom.models.source import (
    Answer,
    Batch,
    InitialValue,
    ModelSource,
    Outside,
    SourceError,
    outside_of,
)

TEXT_ENTRIES = (("tokens", "targets"), ("input_ids", "labels"))
"""Entries that a module without a dataset takes, int64 [sequences, sequence_tokens].

The first pair is the tokens and the next ones. The second pair is the tokens twice, for modules
that shift labels themselves, as in `transformers`.
"""
_MOST_SAMPLES = 2**53
"""Maximum size of a dataset that a manifest can state."""
_SHAPE = "return module, example_batch — or module, example_batch, dataset"


class ModuleSource(ModelSource):
    """`ModelSource` that calls a factory in the run's own code."""

    def __init__(self, code: OwnCode, seed: int, sequence_tokens: int | None) -> None:
        """Run the factory once, for its example batch and its dataset.

        Args:
            code: the source file and the name of the factory in it.
            seed: seed of the random state from which the factory runs.
            sequence_tokens: tokens per sequence of the run's text; None: the factory returns a
                dataset.

        Raises: SourceError if the code fails or returns something else than expected.
        """
        self.name = code.entry
        self._path, self._factory, self._seed = code.path, load_factory(code), seed
        _, example, self.dataset = self._built(seed)
        if sequence_tokens is None and self.dataset is None:
            raise SourceError(
                f'{code.entry} returns no dataset, but the run has [data] source = "module"',
                'return module, example_batch, dataset — or set [data] source = "text"',
            )
        if sequence_tokens is not None and self.dataset is not None:
            raise SourceError(
                f"{code.entry} returns a dataset, but the run's [data] names a text",
                'set [data] source = "module", or return module, example_batch alone',
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

        Raises: SourceError if the module has no such method, or its data is not text.
        """
        logits: Any = getattr(model, "logits", None)
        if self.dataset is not None or not callable(logits):
            return super().next_logits(model)
        return lambda tokens, last: logits(tokens).index_select(1, last).flatten(0, 1)

    def initial_values(self, seed: int) -> InitialValue:
        module, *_ = self._built(seed)
        values = {name: value.detach() for name, value in module.named_parameters()}
        initialised = FirstValues(module, reset, seed)

        def value_of(name: str, shape: tuple[int, ...]) -> Tensor:
            value = values.pop(name)
            owner, _, key = name.rpartition(".")
            if value.is_meta:
                return initialised(name, shape)
            # Memory is released as the values are taken; each tied parameter is requested once.
            parameters = module.get_submodule(owner)._parameters
            parameters[key] = nn.Parameter(value.to("meta"), requires_grad=False)
            return value.to("cpu", torch.float32)

        return value_of

    def outside(self, dtype: torch.dtype) -> Outside:
        return outside_of(self.build(dtype))

    def _built(self, seed: int) -> tuple[nn.Module, Mapping[str, Tensor], Any | None]:
        """Call the factory and return (module, example batch, dataset). Raises: SourceError."""
        try:
            with seeded(f"{seed}:factory"):
                returned = self._factory()
        # User code may raise anything; the error is reported with its line.
        except (Exception, SystemExit) as error:
            place = place_in(self._path, error)
            raise SourceError(
                f"{self.name} failed: {type(error).__name__}: {error}{place}",
                "the factory is called without arguments",
            ) from error
        if not isinstance(returned, tuple) or len(returned) not in (2, 3):
            raise SourceError(f"{self.name} returned {_kind(returned)}", _SHAPE)
        module, example, dataset = (*returned, None)[:3]
        if not isinstance(module, nn.Module):
            what = f"{_kind(module)} where the module belongs"
            raise SourceError(f"{self.name} returned {what}", _SHAPE)
        _check_example(self.name, example)
        if dataset is not None:
            _check_dataset(self.name, dataset)
        return module, example, dataset


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"an object of type {type(value).__name__}"


def _check_example(name: str, example: Any) -> None:
    hint = 'return, for example, {"tokens": torch.zeros(2, 128, dtype=torch.int64), …}'
    if not isinstance(example, dict) or not example:
        raise SourceError(f"{name} returned {_kind(example)} as its example batch", hint)
    sizes = set()
    for key, value in example.items():
        if not isinstance(key, str) or not isinstance(value, Tensor) or not value.dim():
            raise SourceError(f"{name}'s example batch has {key!r}: {_kind(value)}", hint)
        sizes.add(value.shape[0])
    if len(sizes) > 1 or 0 in sizes:
        raise SourceError(
            f"{name}'s example batch has entries of {sorted(sizes)} sequences",
            "the first dimension of every entry must be the same number of sequences, at least 1",
        )


def _check_dataset(name: str, dataset: Any) -> None:
    try:
        count = len(dataset)
    # User code may raise anything, and len() itself refuses negative and too large results.
    except Exception as error:
        raise SourceError(
            f"{name} returned {_kind(dataset)} as its dataset, but its length cannot be had: "
            f"{type(error).__name__}: {error}",
            "a dataset needs __len__(), and __getitem__(index), which returns a dict of tensors",
        ) from error
    if not 0 < count <= _MOST_SAMPLES:
        raise SourceError(
            f"{name} returned a dataset of {count:,} samples",
            f"__len__() must return 1 to {_MOST_SAMPLES:,}; the latter suits an endless stream",
        )


def _check_text_entries(name: str, example: Mapping[str, Tensor], sequence_tokens: int) -> None:
    allowed = " or ".join(" and ".join(entries) for entries in TEXT_ENTRIES)
    if set(example) not in [set(entries) for entries in TEXT_ENTRIES]:
        raise SourceError(
            f"{name}'s example batch has {', '.join(sorted(example))}; text comes as {allowed}",
            'name its entries like that, or return a dataset and set [data] source = "module"',
        )
    for key, value in example.items():
        if value.dtype != torch.int64 or value.dim() != 2:
            what = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
            raise SourceError(
                f"{name}'s example batch has {key}: {what}",
                "make it int64 [sequences, sequence_tokens]",
            )
        if value.shape[1] != sequence_tokens:
            raise SourceError(
                f"{name}'s example batch has sequences of {value.shape[1]} tokens, "
                f"the run file says {sequence_tokens}",
                f"set [model] sequence_tokens = {value.shape[1]}",
            )
