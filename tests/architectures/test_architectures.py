"""Three architectures' whole way; `make architectures` takes all of them."""

from pathlib import Path

import pytest

from tests.architectures.configs import config_of
from tests.architectures.walk import BOUND, walk


@pytest.mark.parametrize("name", ["phi3", "gemma2", "qwen2_moe"])
def test_trained_as_in_pytorch_and_loaded_by_the_library(name: str, tmp_path: Path) -> None:
    seen = walk(tmp_path, config_of(name))
    assert seen.loss <= BOUND
    assert seen.weight <= BOUND
    assert seen.logits_equal
