"""Attack by the owner of a run: a config.json whose few numbers ask for more memory than there is.

Every peer that joins builds the model of such a config before it can tell how large the model is.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from atom.base import usable_memory
from atom.base.errors import ConfigError
from atom.config.load import fill_in, parse_run_text
from atom.config.run_file import PinnedRun
from atom.daemon.model.recipe import open_source, trace_run
from tests.daemon.tiny_run import LLAMA, run_text

pytestmark = pytest.mark.timeout(300)
MIB = 2**20
MOST_MIB = 800
"""Bound on the memory that a child takes: libraries, and what this test allows."""
CHILD = """
import re, resource
from tests.attacks import test_model_configs as attack

GIB = 2**30
resource.setrlimit(resource.RLIMIT_AS, (6 * GIB, 6 * GIB))  # code without a bound takes so much
attack.read_as_a_joiner()
# ru_maxrss would begin with the memory of the process that started this one
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""
NEO = {
    "model_type": "gpt_neo",
    "hidden_size": 64,
    "num_heads": 4,
    "attention_types": [[["global"], 2]],
}
CONFIGS: Mapping[str, dict[str, object]] = {
    "a list of 2 ** 31 entries": NEO
    | {"num_layers": 2, "attention_types": [[["global"], 2**31 - 1]]},
    "4,096 masks of 64 MB": NEO
    | {
        "num_layers": 4096,
        "attention_types": [[["global"], 4096]],
        "max_position_embeddings": 8000,
    },
    "a mask of a gigabyte": NEO | {"num_layers": 2, "max_position_embeddings": 2**15},
    "a table of a gigabyte, the product of two short lists": {
        "model_type": "gptj",
        "n_layer": 1,
        "n_embd": 64,
        "n_head": 4,
        "vocab_size": 64,
        "n_positions": 2**14,
        "rotary_dim": 2**15,
    },
}


def no_free_memory(root: Path = Path("/")) -> usable_memory.UsableMemory:
    return usable_memory.UsableMemory(total_bytes=2**30, available_bytes=0)


def a_run(config: object) -> PinnedRun:
    """Return a pinned run whose model has this config.json."""
    run = parse_run_text(run_text("huge", LLAMA))
    changes = {"huggingface_config": json.dumps(config)}
    return fill_in(run, run.model.model_copy(update=changes), run.data)


def read_as_a_joiner() -> None:
    """Build and trace each model, as a joiner does, on a machine without free memory; print the
    refusals."""
    small = a_run(NEO | {"num_layers": 2, "vocab_size": 64})
    trace_run(small, open_source(small, None))  # imports the library
    usable_memory.ALWAYS_ALLOWED_BYTES = 128 * MIB
    usable_memory.usable_memory = no_free_memory
    for kind, config in CONFIGS.items():
        run = a_run(config)
        with pytest.raises(ConfigError, match=r"^transformers"):
            trace_run(run, open_source(run, None))
        print(kind)  # noqa: T201


def test_a_config_takes_no_more_memory_than_is_allowed() -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    *refused, most_mib = child.stdout.splitlines()
    assert refused == list(CONFIGS)
    assert int(most_mib) < MOST_MIB
