"""Causal language models of the `transformers` library, from a config.json alone.

A config is data and may be a stranger's (`atom.models.huggingface_config` reads it): only the
library's own classes are used, and the network is never asked.
The only door to `transformers`.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from atom.models.chunked_head import loss_in_chunks
from atom.models.first_values import FirstValues, reset
from atom.models.huggingface_config import DROPPED_KEYS, read_config
from atom.models.installing import install_extra
from atom.models.on_meta import parameters_on_meta
from atom.models.source import (
    Answer,
    Batch,
    InitialValue,
    ModelSource,
    Outside,
    SourceError,
    materialised,
    meta_tokens,
    outside_of,
    refuse_difference,
)

SHRINK_LAYERS = 2
ROUNDING = 1e-4
"""Relative; kernels may round a token differently in another neighbourhood."""
_CHANGING_ROPE = {"dynamic", "longrope"}
"""Forms of RoPE that forward changes, by how long a sequence is."""

Config = Any
"""A `transformers.PretrainedConfig`: the library's types are dynamic."""


class HuggingFaceSource(ModelSource):
    """See `atom.models.source.ModelSource`. Parameters have the names that `transformers` gives
    them."""

    def __init__(
        self,
        content: Mapping[str, Any],
        sequence_tokens: int,
        text_entries: Collection[str] = (),
    ) -> None:
        """`content`: a config that `read_config` passed. `text_entries`: what text has besides
        tokens and targets. `target_share`: not all is targets. `positions`: nothing is seen of
        other documents. Raises: SourceError if transformers is missing, or has no such causal
        model.
        """
        self._text_entries = text_entries
        self._content = dict(content)
        self._config, model_class = _opened(self._content)
        self._sequence_tokens = sequence_tokens
        self.name = model_class.__name__
        self.packages = (("transformers", str(_library().__version__)),)
        text = self._config.get_text_config()
        self.vocabulary_size = int(text.vocab_size)
        most = getattr(text, "max_position_embeddings", None)
        self.most_tokens = most if isinstance(most, int) else None
        """That it has positions for; None: as many as one likes."""
        if self.most_tokens is not None and sequence_tokens > self.most_tokens:
            raise SourceError(
                f"sequences of {sequence_tokens} tokens, but the model has {most} positions",
                f"set [model] sequence_tokens to at most {most}",
            )

    def build(self, dtype: torch.dtype) -> nn.Module:
        """`forward(input_ids, labels)` → mean loss."""
        config, model_class = _opened(self._content)
        try:
            with parameters_on_meta():
                model = model_class._from_config(config, dtype=dtype)  # type: ignore[attr-defined]
            _settle_frequencies(model, self._sequence_tokens)
        except SourceError:
            raise
        # The library checks configs in many ways; whatever it raises is about this one.
        except Exception as error:
            raise _unusable(error) from error
        return _returning_loss(model)

    def example_batch(self, sequences: int) -> Batch:
        tokens = meta_tokens(sequences, self._sequence_tokens)
        forms = {"target_share": torch.empty(sequences, device="meta"), "positions": tokens}
        more = {name: forms[name] for name in self._text_entries}
        return self.text_batch({"tokens": tokens, "targets": tokens, **more})

    def text_batch(self, text: Batch) -> Batch:
        """The model shifts labels itself: it is given the tokens twice. So of each sequence the
        last target, which only `targets` holds, is not learned; the loss is transformers' own.
        The first label is nobody's target.
        """
        labels = torch.cat([text["tokens"][:, :1], text["targets"][:, :-1]], dim=1)
        names = {"target_share": "target_share", "positions": "position_ids"}
        more = {own: text[name] for name, own in names.items() if name in text}
        return {"input_ids": text["tokens"], "labels": labels, **more}

    def next_logits(self, model: nn.Module) -> Answer:
        return lambda tokens, last: _next_logits(model, tokens, last)

    def checked_batch(self, batch: Batch) -> Batch:
        """With a second document: the library makes no mask for one alone, unless it is traced,
        and another kernel rounds otherwise."""
        if "positions" not in self._text_entries:
            return batch
        positions, half = batch["position_ids"].clone(), self._sequence_tokens // 2
        positions[:, half:] = torch.arange(positions.shape[1] - half)
        return batch | {"position_ids": positions}

    def initial_values(self, seed: int) -> InitialValue:
        return FirstValues(self.build(torch.float32), _own_initialisation, seed)

    def outside(self, dtype: torch.dtype) -> Outside:
        """As the library would write it."""
        model: Any = self.build(dtype)
        own = outside_of(model, frozenset(getattr(model, "all_tied_weights_keys", None) or ()))
        known = [re.compile(text) for text in model._keys_to_ignore_on_load_unexpected or ()]
        return replace(
            own,
            config=_written(self._config) | {"architectures": [self.name]},
            prefix=f"{model.base_model_prefix}.",
            ignored=lambda name: any(pattern.search(name) for pattern in known),
            converted=_conversion(model),
            loaded=lambda folder: _loaded(self._content, folder),
        )

    def require_config(self, text: str) -> None:
        """Whether it is one model, dropout apart."""
        ours, theirs = _written(self._config), _written(_opened(read_config(text))[0])
        for key in sorted({*ours, *theirs} - {"architectures"}):
            if "drop" not in key:
                refuse_difference(key, theirs.get(key), ours.get(key))

    def shrunk(self) -> ModelSource:
        layers = getattr(self._config, "num_hidden_layers", SHRINK_LAYERS)
        if layers <= SHRINK_LAYERS:
            return self
        names = getattr(self._config, "attribute_map", {})
        small = {
            key: value[:SHRINK_LAYERS]
            if isinstance(value, list) and len(value) == layers
            else value
            for key, value in self._content.items()
        }
        small.pop("num_hidden_layers", None)
        small[names.get("num_hidden_layers", "num_hidden_layers")] = SHRINK_LAYERS
        try:
            return HuggingFaceSource(small, self._sequence_tokens, self._text_entries)
        except SourceError:  # some keys count layers in ways of their own
            return self

    def inspect(self, seed: int) -> None:
        """A model that sees later tokens would learn to copy: changes the second half of a
        sequence, and looks at the first."""
        half, vocabulary = min(8, self._sequence_tokens // 2), self.vocabulary_size or 0
        if not half or vocabulary < 2:
            return
        model = materialised(self, torch.float32, seed).eval()
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(vocabulary, (1, 2 * half), generator=generator)
        changed = tokens.clone()
        changed[0, half:] = (changed[0, half:] + 1) % vocabulary
        with torch.no_grad():
            before, after = (_logits(model, ids)[:, :half] for ids in (tokens, changed))
        if (before - after).abs().max() > ROUNDING * before.abs().max():
            raise SourceError(
                f"{self.name} as configured looks at later tokens",
                "an encoder becomes a decoder with is_decoder = true in its config",
            )
        if "positions" in self._text_entries:
            self._inspect_documents(model, tokens, half)

    def _inspect_documents(self, model: nn.Module, tokens: Tensor, half: int) -> None:
        """Two documents in a sequence are to be as they are alone."""
        positions = torch.arange(2 * half).remainder(half).unsqueeze(0)
        with torch.no_grad():
            packed = _logits(model, tokens, position_ids=positions)[:, half:]
            alone = _logits(model, tokens[:, half:])
        if (packed - alone).abs().max() > ROUNDING * alone.abs().max():
            raise SourceError(
                f"{self.name} looks beyond the document that a token is in",
                "leave out [data] attention: not every architecture can do without",
            )


@cache
def _library() -> Any:
    """Raises: SourceError where it is not installed."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        import transformers
        from transformers.utils import logging
    except ImportError as error:
        raise SourceError(
            f"a model from a Hugging Face config needs the package transformers ({error})",
            f"`{install_extra('hf')}`",
        ) from error
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


def _opened(content: Mapping[str, Any]) -> tuple[Config, type]:
    """The library's config object and its causal language model. Raises: SourceError."""
    library = _library()
    kind = content["model_type"]
    configs, models = library.CONFIG_MAPPING, library.MODEL_FOR_CAUSAL_LM_MAPPING
    if kind not in configs:
        raise SourceError(
            f"transformers {library.__version__} knows no model_type {kind!r}",
            'code that a config brings along is never run; write a module = "…:factory" for it',
        )
    try:
        config = configs[kind].from_dict(dict(content))
    except Exception as error:  # as above: it is about this config
        raise _unusable(error) from error
    if type(config) not in models or config.is_encoder_decoder:
        raise SourceError(
            f"{kind} is no causal language model",
            "only decoders that predict the next token can be trained on text",
        )
    model_class: type = models[type(config)]
    named = content.get("architectures") or [model_class.__name__]
    if model_class.__name__ not in named:
        raise SourceError(
            f"the config is of {', '.join(map(str, named))[:80]}, no causal language model",
            f"transformers' causal model for it is {model_class.__name__}",
        )
    return config, model_class


def _settle_frequencies(model: nn.Module, tokens: int) -> None:
    """Some RoPE forms look at how long a sequence is, and change their frequencies. Here all have
    one length: they are changed once, for that, and forward leaves them alone.
    """
    module: Any
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            if kind in _CHANGING_ROPE:
                named = {} if layer is None else {"layer_type": layer}
                module(torch.zeros(1), torch.arange(tokens)[None], **named)
                still = "default"
                module.rope_type = still if layer is None else {**module.rope_type, layer: still}


def _returning_loss(model: nn.Module) -> nn.Module:
    """Changes the model's class, not its modules: parameters keep their names."""
    parent: Any = type(model)

    def forward(
        self: nn.Module,
        input_ids: Tensor,
        labels: Tensor,
        target_share: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """The mean loss, nats per token, of int64 [sequences, tokens]; labels are not shifted. With
        `target_share`, of as many targets as such sequences have in the mean."""
        targets, more = None, {}
        if target_share is not None:
            targets = target_share.sum() * (input_ids.shape[1] - 1)
        if position_ids is not None:  # from which the library takes that documents are packed
            more["position_ids"] = position_ids
        with loss_in_chunks(self, input_ids.numel(), targets):
            output = parent.forward(
                self, input_ids=input_ids, labels=labels, use_cache=False, return_dict=True, **more
            )
        found: Tensor = output.loss
        return found

    names = {"forward": forward, "__module__": parent.__module__, "plain_forward": parent.forward}
    model.__class__ = type(parent.__name__, (parent,), names)
    return model


def _logits(model: nn.Module, input_ids: Tensor, **more: Tensor) -> Tensor:
    plain: Callable[..., Any] = model.plain_forward  # type: ignore[assignment]
    logits: Tensor = plain(input_ids=input_ids, use_cache=False, return_dict=True, **more).logits
    return logits


def _next_logits(model: Any, tokens: Tensor, last: Tensor) -> Tensor:
    """The head is given that one token alone, where it is a layer that would take all of them."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return _logits(model, tokens).index_select(1, last).flatten(0, 1)
    hook = head.register_forward_pre_hook(lambda _, given: (given[0].index_select(1, last),))
    try:
        return _logits(model, tokens).flatten(0, 1)
    finally:
        hook.remove()


def _own_initialisation(owner: nn.Module, around: Sequence[nn.Module]) -> None:
    """As `transformers` does it: the module's constructor, then `_init_weights` of the model it
    belongs to, for it and for everything around it, inside out.
    """
    reset(owner, around)
    chain = [owner, *around]
    for index, module in enumerate(chain):
        model: Any = next(outer for outer in chain[index:] if hasattr(outer, "_init_weights"))
        try:
            model._init_weights(module)
        except (RuntimeError, NotImplementedError) as error:  # it read layers that have no data yet
            kind = type(module).__name__
            raise SourceError(
                f"transformers' initialisation of {kind} needs the whole model at once: {error}",
                'such a model can be had with module = "…:factory"',
            ) from error


def _loaded(content: Mapping[str, Any], folder: str) -> dict[str, Tensor]:
    """By the library itself, all in memory at once. Raises: SourceError naming what is wrong."""
    config, model_class = _opened(content)
    try:
        model, told = model_class.from_pretrained(  # type: ignore[attr-defined]
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    # The library checks weights in many ways; whatever it raises is about these.
    except Exception as error:
        raise _unusable(error) from error
    for key, what in (
        ("missing_keys", "does not hold"),
        ("unexpected_keys", "holds what the model does not have:"),
        ("mismatched_keys", "holds another shape:"),
    ):
        if told[key]:
            names = ", ".join(sorted(map(str, told[key]))[:3])
            raise SourceError(f"{folder} {what} {names}", "the folder is of another model")
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach() for name, value in tensors}


def _written(config: Config) -> dict[str, Any]:
    """A config.json's keys: all of them, so that another version's defaults change nothing."""
    return {
        key: value
        for key, value in config.to_dict().items()
        if key not in DROPPED_KEYS and not key.startswith("_")
    }


def _conversion(model: Any) -> Callable[[dict[str, Tensor]], dict[str, Tensor]] | None:
    """What the library does to the weights of this architecture between computing and writing;
    None: nothing."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange, revert_weight_conversion

    steps = get_model_conversion_mapping(model, add_legacy=False)
    if all(isinstance(step, PrefixChange) for step in steps):
        return None
    return lambda tensors: revert_weight_conversion(model, tensors)


def _unusable(error: Exception) -> SourceError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return SourceError(
        f"transformers {_library().__version__} cannot use the config: {lines[-1].strip()[:300]}",
        "check the named key in config.json",
    )
