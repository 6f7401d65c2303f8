"""Text from kept runs and exported folders: the same tokens as transformers takes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from atom.base.errors import ConfigError, DeviceError, ModelError, StorageError
from atom.daemon.model import sampled as placed
from atom.daemon.model.sampled import Sampled, answering, sampled_folder
from atom.models.sampling import Sampling, continuations
from atom.models.source import materialised
from tests.daemon.model.kept_runs import CODE, CONFIG, WORDS, Folder, folder_in
from tests.daemon.tiny_run import GPT3, LLAMA

LOGITS = """
    def logits(self, tokens):
        return self.head(self.table(tokens)) * self.scale
    def forward"""
ADAPTERS = '[train]\nwhat = "adapters"\nrank = 2\ntargets = ["q_proj", "mlp.*"]'
PROMPTS = ("A peer", "gi", "What")


def silent(done: int, total: int) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path, CODE.replace("\n    def forward", LOGITS)) as folder:
        yield folder


@pytest.fixture(scope="module")
def gpt3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A founder's folder with a snapshot."""
    with folder_in(tmp_path_factory.mktemp("gpt3")) as folder:
        folder.snapshot(folder.found(GPT3))
        yield folder


def greedy(sampled: Sampled, prompts: Sequence[str] = PROMPTS, tokens: int = 4) -> list[list[int]]:
    read = sampled.read(tuple(prompts))
    window = min(sampled.sequence_tokens, max(map(len, read)) + tokens - 1)
    texts = [list(each) for each in read]
    with answering(sampled, window, len(texts), "cpu", silent) as (ask, known):
        chosen = Sampling(0.0)
        for told in continuations(read, tokens, window, known, sampled.ends, chosen, ask):
            for number, token in told.items():
                texts[number].append(token)
    return texts


def generated(path: Path, tokens: int) -> list[list[int]]:
    """Return what transformers writes after each prompt."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    options = {"do_sample": False, "max_new_tokens": tokens, "pad_token_id": 0}
    with torch.no_grad():
        asked = (tokenizer(prompt, return_tensors="pt") for prompt in PROMPTS)
        return [model.generate(**each, **options)[0].tolist() for each in asked]


@pytest.mark.parametrize(
    ("model", "more"),
    [(GPT3, ""), (f'{LLAMA}\nprecision = "bfloat16"', 'state = "split"')],
    ids=["gpt3", "split llama"],
)
def test_the_likeliest_tokens_are_those_of_transformers(
    folder: Folder, model: str, more: str
) -> None:
    model = model.replace("sequence_tokens = 8", "sequence_tokens = 16")
    folder.snapshot(folder.found(model, more=more))
    kept, out = sampled_folder(folder.root / "a", None, str), folder.export()
    assert kept.title == "round 0 of kept"
    written = generated(out, 4)
    assert greedy(kept) == written
    assert greedy(sampled_folder(out, None, str)) == written


def test_adapters_are_looked_at_with_their_base(folder: Folder) -> None:
    torch.manual_seed(5)
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    base.save_pretrained(folder.root / "base")
    member = folder.found(LLAMA, weights=folder.root / "base", more=ADAPTERS)
    folder.snapshot(member)
    sampled = sampled_folder(folder.root / "a", None, str)
    asked = {"input_ids": torch.tensor([[*b"A peer"]])}
    (text,) = greedy(sampled, ("A peer",), 1)
    assert text[-1] == base.eval()(**asked).logits[0, -1].argmax()

    made = dict[str, torch.Tensor]()

    def value_of(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return made.setdefault(name, torch.randn(shape) * 0.3)

    with answering(replace(sampled, value_of=value_of), 8, 1, "cpu", silent) as (ask, known):
        (logits,) = ask([{"tokens": torch.tensor([[*b"A peer.."]]), "last": torch.tensor([5])}])
    twin = materialised(sampled.source, torch.float32, 0).eval()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(made[name])
        assert any("lora_B" in name for name in made)
        answer = sampled.source.next_logits(twin)
        wanted = answer(torch.tensor([[*b"A peer.."]]), torch.tensor([5]))
    assert known == 256
    assert torch.allclose(logits, wanted, atol=1e-5)


def test_own_modules_are_asked_by_their_logits(folder: Folder) -> None:
    member = folder.found(WORDS)
    folder.snapshot(member)
    sampled = sampled_folder(folder.root / "a", None, str)
    (text,) = greedy(sampled, ("A",), 1)
    table = member.replica.export_parameters()["table.weight"]
    assert text[-1] == (table @ table[ord("A")]).argmax()


def test_own_modules_without_logits_are_refused(tmp_path: Path) -> None:
    with folder_in(tmp_path) as folder:
        folder.snapshot(folder.found(WORDS))
        sampled = sampled_folder(folder.root / "a", None, str)
        with pytest.raises(ConfigError, match="gives no logits") as refused:
            greedy(sampled)
        assert "logits(tokens)" in refused.value.hint


def test_prompts_that_cannot_be_asked_are_refused(gpt3: Folder) -> None:
    sampled = sampled_folder(gpt3.root / "a", None, str)
    with pytest.raises(ConfigError, match="prompt 2 has 9 tokens, and the model's sequences 8"):
        sampled.read(("short", "too long."))
    with pytest.raises(ConfigError, match="prompt 1 has no tokens"):
        sampled.read(("",))
    few = replace(sampled, source=SimpleNamespace(vocabulary_size=64))
    with pytest.raises(ConfigError, match="has the token 114, and the model 64 tokens"):
        few.read(("peer",))


def test_folders_that_hold_no_model_are_refused(gpt3: Folder) -> None:
    empty = gpt3.root / "empty"
    empty.mkdir()
    look = partial(sampled_folder, trust=None, note=str)
    with pytest.raises(StorageError, match="holds neither a run nor a model"):
        look(empty)
    (empty / "adapter_config.json").write_text("{}")
    with pytest.raises(StorageError, match="holds only adapters"):
        look(empty)
    out = gpt3.export()
    (out / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not a tokenizer"):
        look(out)
    (out / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        look(out)


def test_weights_that_give_no_numbers_or_do_not_fit_are_told(
    gpt3: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = sampled_folder(gpt3.root / "a", None, str)
    diverged = replace(sampled, value_of=lambda name, shape: torch.full(shape, torch.nan))
    with pytest.raises(ModelError, match="not finite"):
        greedy(diverged)
    monkeypatch.setattr(placed, "free_host_bytes", lambda cap: 100)
    with pytest.raises(DeviceError, match="of host memory"):
        greedy(sampled)
