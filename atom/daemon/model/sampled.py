"""Sampling of text: a model of the newest snapshot in a state directory, or of an exported folder.

The model is cut and swapped as in training, but without gradients and optimizer state.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from atom.base.errors import ConfigError, DeviceError, ModelError, StorageError
from atom.base.units import format_bytes
from atom.config.peer_file import Sample
from atom.config.run_file import PinnedRun
from atom.daemon.model.kept_run import LATEST, KeptRun
from atom.daemon.model.recipe import PRECISIONS, Recipe
from atom.daemon.model.weight_files import given_values
from atom.daemon.state_directory import StateDirectory
from atom.graph.costs.measured import measure_link
from atom.graph.costs.seconds import typical_graph
from atom.graph.ir import ParameterLayout
from atom.graph.program import load
from atom.graph.trace import trace
from atom.models.data.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer, tokens_of
from atom.models.hub import CONFIG
from atom.models.huggingface import HuggingFaceSource
from atom.models.huggingface_config import config_text, read_config
from atom.models.sampling import MOST_TOKENS, Ask, Prompts, example_question, next_token_model
from atom.models.source import ModelSource
from atom.plan.choosing import Question, choose
from atom.plan.devices import free_host_bytes, open_devices, usable_device_bytes
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.swap.voided import Cause, PassVoided, finite_answers

Note = Callable[[str], None]
Progress = Callable[[int, int], None]
"""Callback (bytes done, bytes in total)."""
_ADAPTER_CONFIG = "adapter_config.json"
_WITHOUT_POSITIONS = 1 << 20
"""Limit of a prompt's tokens for models without a largest number of positions."""


@dataclass(frozen=True)
class Sampled:
    """A model with its weights and its tokenizer."""

    title: str
    """Name of the weights for people, such as "round 12 of my-run"."""
    source: ModelSource
    dtype: torch.dtype
    """Dtype in which the model computes."""
    sequence_tokens: int
    """Largest number of tokens of a text: the length of the training sequences, or an exported
    model's number of positions."""
    tokenizer: Tokenizer
    value_of: Callable[[str, tuple[int, ...]], Tensor]
    """Function that returns a parameter, given its name and shape."""
    ends: frozenset[int]
    """Tokens that end a text or an answer."""

    def read(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each prompt. Raises: ConfigError: as `read_prompts`."""
        known = self.source.vocabulary_size
        return read_prompts(prompts, self.tokenizer, self.sequence_tokens, known)


def read_prompts(
    prompts: Sequence[str], tokenizer: Tokenizer, most: int, vocabulary: int | None
) -> list[list[int]]:
    """Return the tokens of each prompt.

    Args:
        prompts: beginnings of texts.
        tokenizer: the model's tokenizer.
        most: largest number of tokens of a prompt.
        vocabulary: number of tokens that the model knows; None: unknown.

    Raises:
        ConfigError: a prompt is empty, too long, or not of this model's vocabulary.
    """
    read = list[list[int]]()
    for number, prompt in enumerate(prompts, 1):
        tokens = tokens_of(tokenizer, prompt)
        tokens = tokenizer.border(None, prompt, tokens) + tokens
        if not tokens:
            raise ConfigError(f"prompt {number} has no tokens", "write the start of a text")
        if len(tokens) > most:
            raise ConfigError(
                f"prompt {number} has {len(tokens):,} tokens, and the model's sequences {most:,}",
                "shorten it: the model would ignore the tokens before them",
            )
        if vocabulary is not None and max(tokens) >= vocabulary:
            raise ConfigError(
                f"prompt {number} has the token {max(tokens):,}, and the model {vocabulary:,} "
                "tokens",
                "the tokenizer belongs to another model",
            )
        read.append(tokens)
    return read


def run_tokenizer(run: PinnedRun, path: Path) -> Tokenizer:
    """Return the run's tokenizer, as the state directory keeps it.

    Args:
        run: the run.
        path: path of the run's tokenizer in the state directory; not read for bytes.

    Raises:
        StorageError: the file is missing, or is not the run's tokenizer.
    """
    if run.data.tokenizer == "bytes":
        return ByteTokenizer()
    try:
        found = JsonTokenizer(path)
        if found.digest == run.data.tokenizer_sha256:
            return found
        problem = f"{path} is not the run's tokenizer"
    except ConfigError as damage:
        problem = damage.message
    raise StorageError(problem, "start the daemon with the run's tokenizer: it stores a copy")


def wanted_prompts(
    wanted: Sample, recipe: Recipe, tokenizer_json: Path, note: Note
) -> Prompts | None:
    """Return the prompts of a peer file, as tokens.

    Args:
        wanted: section [sample] of the peer file.
        recipe: the run and its model.
        tokenizer_json: path of the run's tokenizer in the state directory.
        note: gets a message if the tokenizer has not arrived yet.

    Returns:
        The prompts; None if there are none, or the tokenizer has not arrived yet.

    Raises:
        ConfigError: a prompt cannot be used, or the run does not train on text.
        StorageError: the kept tokenizer is not the run's.
    """
    run, source = recipe.run, recipe.source
    if not wanted.prompts:
        return None
    _require_text(run)
    if run.data.tokenizer != "bytes" and not tokenizer_json.exists():
        note("[sample]: the tokenizer is being fetched; texts are written after the next start")
        return None
    tokenizer, most = run_tokenizer(run, tokenizer_json), run.model.sequence_tokens
    ends = frozenset(run.data.answer_ends or ())
    try:
        tokens = read_prompts(wanted.prompts, tokenizer, most, source.vocabulary_size)
    except ConfigError as problem:
        raise ConfigError(f"sample.prompts: {problem.message}", problem.hint) from problem
    return Prompts(
        wanted.every_rounds,
        tokens,
        min(most, max(map(len, tokens)) + MOST_TOKENS - 1),
        tokenizer.vocabulary_size,
        ends,
        tokenizer.decode,
    )


def sampled_folder(folder: Path, trust: str | None, note: Note) -> Sampled:
    """Return the model in a state directory or an exported folder.

    Args:
        folder: the folder.
        trust: value of `--trust`, for a run whose model is code of its owner; None: not given.
        note: gets a message before the chain is checked, which may take long.

    Raises:
        StorageError: there is no model, or its files are damaged.
        ConfigError: the model cannot be used for sampling.
        MismatchError: this installation builds another model than the run's.
        ModelError: the model cannot be traced.
        TrustError: the model is code that may not run here.
    """
    if StateDirectory(folder).manifest.exists():
        return _kept(folder, trust, note)
    if (folder / CONFIG).exists():
        return _exported(folder)
    if (folder / _ADAPTER_CONFIG).exists():
        raise StorageError(
            f"{folder} holds only adapters", "export without --adapter, or name the state directory"
        )
    raise StorageError(
        f"{folder} holds neither a run nor a model",
        "name a peer's state directory, or a folder of `atom export`",
    )


def _require_text(run: PinnedRun) -> None:
    """Raise ConfigError unless the run trains on text."""
    if run.data.source == "module":
        raise ConfigError(
            f"the run {run.run.name} trains on its module's own dataset, and not on text",
            "it has no text to sample",
        )


def _kept(folder: Path, trust: str | None, note: Note) -> Sampled:
    kept = KeptRun.read(folder, note)
    _require_text(kept.run)
    tokenizer = run_tokenizer(kept.run, kept.state.tokenizer)
    source, snapshot, weights = kept.opened(trust, LATEST)
    dtype = PRECISIONS[kept.run.model.precision]
    return Sampled(
        f"round {snapshot.round:,} of {kept.run.run.name}",
        source,
        dtype,
        kept.run.model.sequence_tokens,
        tokenizer,
        lambda name, shape: weights.value(name, dtype),
        frozenset(kept.run.data.answer_ends or ()),
    )


def _exported(folder: Path) -> Sampled:
    tokenizer = JsonTokenizer(folder / "tokenizer.json")
    text = config_text(folder / CONFIG)
    source = HuggingFaceSource(read_config(text), 1)
    dtype = PRECISIONS.get(json.loads(text).get("dtype"), torch.float32)
    values = given_values(source, folder)
    most = source.most_tokens or _WITHOUT_POSITIONS
    return Sampled(str(folder), source, dtype, most, tokenizer, values, frozenset(tokenizer.ends))


# ---- answers of a model


@contextmanager
def answering(
    sampled: Sampled, window: int, texts: int, kind: str, progress: Progress
) -> Iterator[tuple[Ask, int]]:
    """Load a model on a device, as a context manager that closes the device at the end.

    Args:
        sampled: Model and weights.
        window: Tokens of a question.
        texts: Most questions that are answered in one pass.
        kind: Device to use, as in the peer file: "cpu", for example.
        progress: Receives the progress of loading the weights.

    Yields:
        The function that answers questions, and the number of tokens in the model's vocabulary.

    Raises:
        ConfigError: The model cannot be built, or gives no logits.
        ModelError: The model cannot be traced, or (in a pass) gives no finite numbers.
        DeviceError: The device or the host has too little memory.
        Exception: `sampled.value_of` cannot read the weights.
    """
    model = next_token_model(sampled.source, sampled.dtype)
    graph = trace(model, example_question(window), training=False, gives_loss=False)
    layout, vocabulary = graph.layout, graph.specs[graph.loss].shape[-1]
    (device,) = open_devices([kind], sampled.dtype)
    try:
        left_bytes = free_host_bytes(None) - layout.total_elements * sampled.dtype.itemsize
        if left_bytes < 0:
            takes = format_bytes(layout.total_elements * sampled.dtype.itemsize)
            raise DeviceError(f"the weights need {takes} of host memory", "end other programs")
        on = device.torch_device
        profile = typical_graph(graph, on, measure_link(on))
        device_bytes = usable_device_bytes([on], left_bytes)
        choice = choose(Question.of(graph, profile, device_bytes, texts, left_bytes))
        program = choice.program(graph)
        store = _weights(sampled, layout, device, progress)
        slots = DeviceSlots.allocate([program], device, sampled.dtype, choice.arrangement, texts)
        engine = Engine(program, load(program, on), store, slots, device)
        yield partial(_answered, engine), vocabulary
    finally:
        device.close()


def _weights(
    sampled: Sampled, layout: ParameterLayout, device: Device, progress: Progress
) -> HostStore:
    """Return a store with the weights in the precision in which the device loads them."""
    working, done = device.host_memory(layout.total_elements, sampled.dtype), 0
    for spec in layout.specs:
        progress(done * sampled.dtype.itemsize, working.nbytes)
        layout.view(working, spec.name).copy_(sampled.value_of(spec.name, spec.shape))
        done += spec.numel
    progress(working.nbytes, working.nbytes)
    return HostStore.of_weights(layout, working)


def _answered(engine: Engine, questions: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    """Answer questions in one pass.

    Raises:
        ModelError: The answers are not finite.
        DeviceError: Memory ran out.
    """
    try:
        return finite_answers(engine.evaluate(questions))
    except PassVoided as void:
        if void.cause is Cause.MEMORY:
            what, hint = f"memory ran out: {void.detail}", "use fewer prompts, or --device cpu"
            raise DeviceError(what, hint) from void
        what, hint = "the model computes numbers that are not finite", "the training has diverged"
        raise ModelError(what, hint) from void
