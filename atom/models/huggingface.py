"""Causal language models of the `transformers` library, built from a config.json.

A config is data, possibly from another peer (`atom.models.huggingface_config` checks it). Only
classes of the installed library are used, and nothing is downloaded. Models of `transformers` are
built only in this module.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from atom.base.errors import ConfigError
from atom.models.gpt3 import IGNORED, loss_chunks
from atom.models.huggingface_config import read_config
from atom.models.huggingface_library import (
    all_keys,
    config_and_class,
    library,
    library_errors,
    library_format,
    not_in_peft,
)
from atom.models.on_meta import first_values, parameters_on_meta, reset
from atom.models.source import (
    Answer,
    Batch,
    InitialValue,
    ModelSource,
    Outside,
    materialised,
    meta_tokens,
    refuse_difference,
    replace_forward,
)

SHRINK_LAYERS = 2
"""Number of layers of a shrunk model."""
ROUNDING = 1e-4
"""Relative tolerance between logits of one token among different other tokens."""
_CHANGING_ROPE = {"dynamic", "longrope"}
"""Kinds of RoPE whose frequencies the forward pass changes with the sequence length."""

_USUAL_LOSS = "ForCausalLMLoss"
"""Name of the library's cross-entropy of the next token, a mean over tokens that are targets."""


class HuggingFaceSource(ModelSource):
    """`ModelSource` of a `transformers` model, whose parameters keep the library's names."""

    def __init__(
        self,
        content: Mapping[str, Any],
        sequence_tokens: int,
        text_entries: Collection[str] = (),
    ) -> None:
        """Check that the library has the model.

        Args:
            content: keys of the config.json, as `read_config` returned them.
            sequence_tokens: number of tokens per sequence.
            text_entries: entries of text batches besides tokens and targets: "target_share" if only
                some tokens are targets, "positions" if attention stays within documents.

        Raises:
            ConfigError: transformers is missing, has no such causal model, or the model has fewer
                positions than `sequence_tokens`.
        """
        self._text_entries = text_entries
        self._content = dict(content)
        self._config, model_class = config_and_class(self._content)
        self._sequence_tokens = sequence_tokens
        self.name = model_class.__name__
        self.packages = (("transformers", str(library().__version__)),)
        text = self._config.get_text_config()
        self.vocabulary_size = int(text.vocab_size)
        most = getattr(text, "max_position_embeddings", None)
        self.most_tokens = most if isinstance(most, int) else None
        """Number of positions of the model; None: unlimited."""
        if self.most_tokens is not None and sequence_tokens > self.most_tokens:
            raise ConfigError(
                f"sequences of {sequence_tokens} tokens, but the model has {most} positions",
                f"set [model] sequence_tokens to at most {most}",
            )

    def build(self, dtype: torch.dtype) -> nn.Module:
        """Return the model, whose `forward(input_ids, labels)` returns the mean loss.

        Raises:
            ConfigError: the library cannot build the model.
        """
        config, model_class = config_and_class(self._content)
        with library_errors():
            with parameters_on_meta():
                model = model_class._from_config(config, dtype=dtype)  # type: ignore[attr-defined]
            _settle_frequencies(model, self._sequence_tokens)
        return _returning_loss(model)

    def example_batch(self, sequences: int) -> Batch:
        tokens = meta_tokens(sequences, self._sequence_tokens)
        entries = {"target_share": torch.empty(sequences, device="meta"), "positions": tokens}
        extra = {name: entries[name] for name in self._text_entries}
        return self.text_batch({"tokens": tokens, "targets": tokens, **extra})

    def text_batch(self, text: Batch) -> Batch:
        """Return the forward's arguments for a batch of text.

        The model shifts labels itself, so labels are unshifted tokens, with IGNORED where the
        targets have it. The last target of each sequence therefore is not trained on. The first
        label is not the target of any token.
        """
        labels = torch.cat([text["tokens"][:, :1], text["targets"][:, :-1]], dim=1)
        names = {"target_share": "target_share", "positions": "position_ids"}
        extra = {own: text[name] for name, own in names.items() if name in text}
        return {"input_ids": text["tokens"], "labels": labels, **extra}

    def next_logits(self, model: nn.Module) -> Answer:
        return lambda tokens, last: _next_logits(model, tokens, last)

    def adaptable(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return the modules through which text passes and whose adapters `peft` can load.

        In some mixtures of experts, `peft` takes names of dense layers for old names of experts. It
        refuses the last layer of Mamba's blocks.
        """
        whole: Any = model
        text, refused = set(whole.get_decoder().modules()), not_in_peft(self._config.model_type)
        return {
            name: each
            for name, each in super().adaptable(model).items()
            if each in text and name.rpartition(".")[2] not in refused
        }

    def initial_values(self, seed: int) -> InitialValue:
        return first_values(self.build(torch.float32), _own_initialisation, seed)

    def outside(self, dtype: torch.dtype) -> Outside:
        """Return the folder format in which the library itself writes the model."""
        return library_format(self.build(dtype), self._content)

    def require_config(self, text: str) -> None:
        """Check that a config.json describes this model; dropout may differ.

        Raises:
            ConfigError: the message names the first key that differs.
        """
        ours, theirs = all_keys(self._config), all_keys(config_and_class(read_config(text))[0])
        for key in sorted({*ours, *theirs} - {"architectures"}):
            if "drop" not in key:
                refuse_difference(key, theirs.get(key), ours.get(key))

    def shrunk(self) -> ModelSource:
        layers = getattr(self._config, "num_hidden_layers", SHRINK_LAYERS)
        if layers <= SHRINK_LAYERS:
            return self
        own_names = getattr(self._config, "attribute_map", {})
        small = {
            key: value[:SHRINK_LAYERS]
            if isinstance(value, list) and len(value) == layers
            else value
            for key, value in self._content.items()
        }
        small.pop("num_hidden_layers", None)
        small[own_names.get("num_hidden_layers", "num_hidden_layers")] = SHRINK_LAYERS
        try:
            return HuggingFaceSource(small, self._sequence_tokens, self._text_entries)
        except ConfigError:  # some configs have further keys that must match the number of layers
            return self

    def inspect(self, seed: int) -> None:
        """Check that the model does not attend to later tokens, from which it would learn to copy.

        The check changes the second half of a sequence and compares the logits of the first half.

        Raises:
            ConfigError: the logits differ, or attention crosses documents but must not.
        """
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
            hint = "choose a model that predicts each token from earlier ones alone"
            if "is_decoder" in self._config.to_dict():
                hint = "an encoder becomes a decoder with is_decoder = true in its config"
            raise ConfigError(f"{self.name} as configured looks at later tokens", hint)
        if "positions" in self._text_entries:
            self._inspect_documents(model, tokens, half)

    def _inspect_documents(self, model: nn.Module, tokens: Tensor, half: int) -> None:
        """Check that the second document of a sequence has the same logits as on its own.

        Raises:
            ConfigError: the logits differ.
        """
        positions = torch.arange(2 * half).remainder(half).unsqueeze(0)
        with torch.no_grad():
            packed = _logits(model, tokens, position_ids=positions)[:, half:]
            alone = _logits(model, tokens[:, half:])
        if (packed - alone).abs().max() > ROUNDING * alone.abs().max():
            raise ConfigError(
                f"{self.name} attends beyond the document of a token",
                "remove [data] attention: this architecture cannot attend within documents only",
            )


def _settle_frequencies(model: nn.Module, tokens: int) -> None:
    """Fix the frequencies of RoPE kinds that depend on the sequence length.

    All sequences of a run have the same length: the frequencies are set for it once, and the
    forward pass then leaves them unchanged.
    """
    module: Any
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            if kind in _CHANGING_ROPE:
                options = {} if layer is None else {"layer_type": layer}
                module(torch.zeros(1), torch.arange(tokens)[None], **options)
                fixed = "default"
                module.rope_type = fixed if layer is None else {**module.rope_type, layer: fixed}


def _returning_loss(model: nn.Module) -> nn.Module:
    """Make the model's forward return its loss."""
    parent: Any = type(model)

    def forward(
        self: nn.Module,
        input_ids: Tensor,
        labels: Tensor,
        target_share: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Return the mean loss in nats per token.

        With `target_share`, the sum of losses is divided by the expected number of targets.

        Args:
            input_ids: int64 [sequences, tokens].
            labels: int64 [sequences, tokens], not shifted.
            target_share: float32 [sequences], the expected fraction of targets.
            position_ids: int64 [sequences, tokens], the position in the document.
        """
        targets, more = None, {}
        if target_share is not None:
            targets = target_share.sum() * (input_ids.shape[1] - 1)
        if position_ids is not None:  # the library infers packed documents from positions
            more["position_ids"] = position_ids
        with loss_in_chunks(self, input_ids.numel(), targets):
            output = parent.forward(
                self, input_ids=input_ids, labels=labels, use_cache=False, return_dict=True, **more
            )
        found: Tensor = output.loss
        return found

    return replace_forward(model, forward, plain_forward=parent.forward)


def _logits(model: nn.Module, input_ids: Tensor, **more: Tensor) -> Tensor:
    plain: Callable[..., Any] = model.plain_forward  # type: ignore[assignment]
    logits: Tensor = plain(input_ids=input_ids, use_cache=False, return_dict=True, **more).logits
    return logits


def _next_logits(model: Any, tokens: Tensor, last: Tensor) -> Tensor:
    """Return logits [1, vocabulary] of the token after place `last` (an `Answer`).

    If the head is a plain linear layer, it is applied to that one place only.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return _logits(model, tokens).index_select(1, last).flatten(0, 1)
    hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0].index_select(1, last),))
    try:
        return _logits(model, tokens).flatten(0, 1)
    finally:
        hook.remove()


def _own_initialisation(owner: nn.Module, around: Sequence[nn.Module]) -> None:
    """Initialise a module as `transformers` does (an `Initialise`).

    The module is first reset as in its constructor. Then the model's `_init_weights` is called for
    it and for the enclosing modules, from the innermost outwards.

    Raises:
        ConfigError: the initialisation reads parameters of other modules.
    """
    reset(owner, around)
    chain = [owner, *around]
    for index, module in enumerate(chain):
        model: Any = next(outer for outer in chain[index:] if hasattr(outer, "_init_weights"))
        try:
            model._init_weights(module)
        except (RuntimeError, NotImplementedError) as error:  # it read parameters without memory
            kind = type(module).__name__
            raise ConfigError(
                f"transformers' initialisation of {kind} needs the whole model at once: {error}",
                'build such a model in a module = "…:factory" instead',
            ) from error


# ---- loss in chunks
#
# The library computes the logits of all tokens at once. If the model passes the head's output to
# the usual loss unchanged, the loss is computed from the head's input instead, chunk by chunk, each
# under a checkpoint, so that only one chunk's logits are in memory. The original call of the head
# then has no user, and tracing drops it.


@contextmanager
def loss_in_chunks(model: Any, tokens: int, targets: Tensor | None = None) -> Iterator[None]:
    """Compute the loss of the model's forward in chunks while the context is active.

    Chunks are used only if they save memory and the model passes its head's output to the usual
    loss unchanged.

    Args:
        model: a `transformers.PreTrainedModel` with a language-model head.
        tokens: number of tokens of the forward's batch.
        targets: expected number of targets in such a batch, a scalar. If given, the loss is the sum
            over the targets divided by this number, so that each target weighs the same, however
            many its micro-batch has (possibly none).

    Raises:
        ConfigError: `targets` is given and the model does not use the usual loss.
    """
    head, usual = model.get_output_embeddings(), model.loss_function
    chunks = 1
    if isinstance(head, nn.Linear) and _is_usual(usual):
        chunks = loss_chunks(head.in_features, head.out_features, tokens)
    if chunks == 1 and targets is None:
        yield
        return
    seen: list[tuple[Tensor, Tensor]] = []
    called = False
    hook = head.register_forward_hook(lambda _, inputs, logits: seen.append((inputs[0], logits)))
    before = vars(model).get("_loss_function")

    def loss(logits: Tensor, labels: Tensor, vocab_size: int, **options: Any) -> Tensor:
        nonlocal called
        called = True
        unchanged = chunks > 1 and len(seen) == 1 and logits is seen[0][1]
        if not unchanged or any(value is not None for value in options.values()):
            if targets is not None:
                options["num_items_in_batch"] = targets
            return usual(logits, labels, vocab_size, **options)  # type: ignore[no-any-return]
        return _chunked(head, seen[0][0], labels, chunks, usual, targets)

    model._loss_function = loss
    try:
        yield
        if targets is not None and not (called and _is_usual(usual)):
            raise ConfigError(
                f"{type(model).__name__} has its own loss, which weights answers unequally",
                "train on all tokens: remove [data] train_on",
            )
    finally:
        hook.remove()
        del model._loss_function
        if before is not None:
            model._loss_function = before


def _is_usual(loss: Any) -> bool:
    return getattr(loss, "__name__", "") == _USUAL_LOSS


def _chunked(
    head: nn.Linear,
    hidden: Tensor,
    labels: Tensor,
    chunks: int,
    usual: Callable[..., Tensor],
    divisor: Tensor | None,
) -> Tensor:
    """Return the loss of hidden [B, S, D] against labels [B, S], computed in `chunks` chunks.

    Labels are not shifted. The loss is the sum over the targets, divided by `divisor`, or by the
    number of targets if that is None.
    """
    targets = functional.pad(labels, (0, 1), value=IGNORED)[:, 1:].flatten()
    counted = (targets != IGNORED).sum() if divisor is None else divisor

    def share(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = functional.linear(hidden, head.weight, head.bias)
        return usual(
            logits, None, head.out_features, num_items_in_batch=counted, shift_labels=targets
        )

    pairs = zip(hidden.flatten(0, 1).chunk(chunks), targets.chunk(chunks), strict=True)
    shares = [checkpoint(share, *pair, use_reentrant=False) for pair in pairs]
    return torch.stack(shares).sum()
