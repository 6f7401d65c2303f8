import subprocess
import sys

BLOCKED = "numpy pyarrow datasets pydantic tokenizers blake3 hivemind grpc safetensors psutil"
BLOCKED += " atom.base.errors atom.config"
PROGRAM = f"""
import sys
for name in {BLOCKED.split()!r}:
    sys.modules[name] = None
import warnings
warnings.simplefilter("ignore")
import tempfile
from pathlib import Path
import atom.models.gpt3
from atom.models.data.samples import text_samples
from atom.models.data.files import stdlib_corpus
dataset = text_samples(
    stdlib_corpus(100_000), "bytes", validation_fraction=0.1, sequence_tokens=64, seed=1,
    cache_folder=Path(tempfile.mkdtemp(dir=sys.argv[1])),
)
assert dataset.batch([0, 1])["tokens"].shape == (2, 64)
"""


def test_models_and_data_run_with_torch_alone(tmp_path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, timeout=60)
