"""Text from kept runs and exported folders: the same tokens as transformers takes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers

from atom.base.errors import ConfigError, DeviceError, ModelError, StorageError
from atom.daemon.model import sampled as placed
from atom.daemon.model.exporting import export_run
from atom.daemon.model.sampled import Sampled, answering, sampled_folder
from atom.models.sampling import Sampling, continuations, question
from atom.models.source import materialised
from tests.daemon.model.kept_runs import CODE, CONFIG, WORDS, Folder, folder_in
from tests.daemon.silence import Silence
from tests.daemon.tiny_run import GPT3, LLAMA

LOGITS = """
    def logits(self, tokens):
        return self.head(self.table(tokens)) * self.scale
    def forward"""
ADAPTERS = '[train]\nwhat = "adapters"\nrank = 2\ntargets = ["q_proj", "mlp.*"]'
PROMPTS = ("A peer", "gi", "What")


def silent(done: int, total: int) -> None:
    pass


def note(text: str) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path, CODE.replace("\n    def forward", LOGITS)) as folder:
        yield folder


def greedy(sampled: Sampled, prompts: Sequence[str] = PROMPTS, tokens: int = 6) -> list[list[int]]:
    read = sampled.read(tuple(prompts))
    window = min(sampled.sequence_tokens, max(map(len, read)) + tokens - 1)
    texts = [list(each) for each in read]
    with answering(sampled, window, len(texts), "cpu", silent) as (ask, known):
        chosen = Sampling(0.0)
        for told in continuations(read, tokens, window, known, sampled.ends, chosen, ask):
            for number, token in told.items():
                texts[number].append(token)
    return texts


def generated(path: Path, prompt: str, tokens: int) -> list[int]:
    model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    asked = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        found = model.generate(**asked, do_sample=False, max_new_tokens=tokens, pad_token_id=0)
    whole: list[int] = found[0].tolist()
    return whole


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (GPT3, ""),
        (LLAMA, ""),
        (f'{LLAMA}\nprecision = "bfloat16"', 'state = "split"'),
    ],
    ids=["gpt3", "llama", "split llama"],
)
def test_the_likeliest_tokens_are_those_of_transformers(
    folder: Folder, model: str, more: str
) -> None:
    model = model.replace("sequence_tokens = 8", "sequence_tokens = 16")
    folder.snapshot(folder.found(model, more=more))
    kept, out = folder.root / "a", folder.root / "out"
    export_run(out, kept, Silence())
    from_run = greedy(sampled_folder(kept, None, note))
    assert from_run == [generated(out, prompt, 6) for prompt in PROMPTS]
    assert greedy(sampled_folder(out, None, note)) == from_run
    assert greedy(sampled_folder(kept, None, note), PROMPTS[:1]) == from_run[:1]
    assert sampled_folder(kept, None, note).title == "round 0 of kept"


def test_a_text_longer_than_a_sequence_goes_on_by_its_last_tokens(folder: Folder) -> None:
    folder.snapshot(folder.found(GPT3))
    sampled = sampled_folder(folder.root / "a", None, note)
    (text,) = greedy(sampled, ("A peer",), 12)
    assert len(text) == 18
    with answering(sampled, 8, 1, "cpu", silent) as (ask, _):
        assert [int(ask([question(text[:n], 8)])[0].argmax()) for n in range(6, 18)] == text[6:]
        ((last,),) = [ask([question(text[9:17], 8)])]
    assert int(last.argmax()) == text[17]


def test_adapters_are_looked_at_with_their_base(folder: Folder) -> None:
    torch.manual_seed(5)
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    base.save_pretrained(folder.root / "base")
    member = folder.found(LLAMA, weights=folder.root / "base", more=ADAPTERS)
    folder.snapshot(member)
    sampled = sampled_folder(folder.root / "a", None, note)
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
    sampled = sampled_folder(folder.root / "a", None, note)
    (text,) = greedy(sampled, ("A",), 1)
    table = member.replica.export_parameters()["table.weight"]
    assert text[-1] == (table @ table[ord("A")]).argmax()


def test_own_modules_without_logits_are_refused(tmp_path: Path) -> None:
    with folder_in(tmp_path) as folder:
        folder.snapshot(folder.found(WORDS))
        sampled = sampled_folder(folder.root / "a", None, note)
        with pytest.raises(ConfigError, match="gives no logits") as refused:
            greedy(sampled)
        assert "logits(tokens)" in refused.value.hint


def test_prompts_that_cannot_be_asked_are_refused(folder: Folder) -> None:
    folder.snapshot(folder.found(GPT3))
    sampled = sampled_folder(folder.root / "a", None, note)
    with pytest.raises(ConfigError, match="prompt 2 has 9 tokens, and the model's sequences 8"):
        sampled.read(("short", "too long."))
    with pytest.raises(ConfigError, match="prompt 1 has no tokens"):
        sampled.read(("",))
    few = replace(sampled, source=replace_vocabulary(sampled, 64))
    with pytest.raises(ConfigError, match="has the token 114, and the model 64 tokens"):
        few.read(("peer",))


def replace_vocabulary(sampled: Sampled, size: int) -> object:
    source = type("Other", (), {"vocabulary_size": size})()
    return source


def test_folders_that_hold_no_model_are_refused(folder: Folder) -> None:
    empty = folder.root / "empty"
    empty.mkdir()
    look = partial(sampled_folder, trust=None, note=note)
    with pytest.raises(StorageError, match="holds neither a run nor a model"):
        look(empty)
    (empty / "adapter_config.json").write_text("{}")
    with pytest.raises(StorageError, match="holds only adapters"):
        look(empty)
    member = folder.found(GPT3)
    with pytest.raises(StorageError, match="holds no snapshot yet"):
        look(folder.root / "a")
    path = folder.snapshot(member)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StorageError, match="damaged"):
        look(folder.root / "a")
    out = folder.root / "out"
    path.write_bytes(bytes([*raw[:-1], raw[-1] ^ 1]))
    export_run(out, folder.root / "a", Silence())
    (out / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not a tokenizer"):
        look(out)
    (out / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        look(out)


def test_weights_that_give_no_numbers_or_do_not_fit_are_told(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.snapshot(folder.found(GPT3))
    sampled = sampled_folder(folder.root / "a", None, note)
    diverged = replace(sampled, value_of=lambda name, shape: torch.full(shape, torch.nan))
    with pytest.raises(ModelError, match="not finite"):
        greedy(diverged)
    monkeypatch.setattr(placed, "free_host_bytes", lambda cap: 100)
    with pytest.raises(DeviceError, match="of host memory"):
        greedy(sampled)
