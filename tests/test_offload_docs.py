"""The scripts of docs/offload.md run as they are printed, and learn."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
import transformers

PAGE = Path(__file__).parent.parent / "docs" / "offload.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
SCRIPTS = {
    section.partition("\n")[0]: found.group(1)
    for section in SECTIONS
    if (found := re.search(r"```python\n(.*?)```", section, flags=re.DOTALL))
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder of a script, with a small model of transformers in it."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=64)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_has_five_scripts() -> None:
    assert len(SCRIPTS) == 5


@pytest.mark.parametrize("title", SCRIPTS)
def test_a_script_runs_and_learns(title: str, folder: Path) -> None:
    torch.manual_seed(0)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(SCRIPTS[title], f"docs/offload.md ({title})", "exec"), {"__name__": "page"})
    lines = printed.getvalue().splitlines()
    losses = [float(line.split()[1]) for line in lines if line.split()[0].isdigit()]
    assert losses == [] or losses[-1] < losses[0]
    for line in lines:
        if line.startswith("equal bits"):
            assert line == "equal bits True"
        if line.startswith("accuracy"):
            assert float(line.split()[1]) > 0.5
    assert bool(losses) or "equal bits True" in lines
    if "save_pretrained" in SCRIPTS[title]:
        assert (folder / "my-trained-model" / "model.safetensors").exists()
