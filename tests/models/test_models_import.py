import subprocess
import sys
from pathlib import Path

import pytest

from atom.models.source import install_extra, install_package, install_version

BLOCKED = "numpy pyarrow datasets pydantic tokenizers blake3 hivemind grpc safetensors psutil"
BLOCKED += " atom.config"
PROGRAM = f"""
import sys
for name in {BLOCKED.split()!r}:
    sys.modules[name] = None
import warnings
warnings.simplefilter("ignore")
import tempfile
from pathlib import Path
import atom.models.gpt3
from atom.models.data.samples import Cut, Text, token_samples
from atom.models.data.corpus import stdlib_corpus
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import load_tokenizer
coder, folder = load_tokenizer("bytes"), Path(tempfile.mkdtemp(dir=sys.argv[1]))
text = Text(cached_tokens(stdlib_corpus(100_000), coder, folder))
dataset = token_samples([text], coder, Cut(0.1, 64, 4096), 1)
assert dataset.batch([0, 1])["tokens"].shape == (2, 64)
"""


def test_models_and_data_run_with_torch_alone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, timeout=60)


def test_commands_to_paste_name_the_python_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/my box/python")
    pip = "'/my box/python' -m pip install"
    assert install_extra("hf") == f"{pip} 'atom-swarm[hf]'"
    assert install_package("torch>=2.9") == f"{pip} 'torch>=2.9'"
    assert install_version("torch", "2.9.1") == f"{pip} torch==2.9.1"
