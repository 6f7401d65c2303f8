"""PyTorch is loaded without the garbage collector, which works again afterwards."""

import gc
import importlib

import pytest

from atom.cli.train_commands import load_torch


@pytest.mark.parametrize("fails", [False, True])
def test_the_collector_rests_during_the_import_only(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def load(name: str) -> None:
        seen.append(gc.isenabled())
        if fails:
            raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", load)
    frozen = gc.get_freeze_count()
    try:
        load_torch()
    except ImportError:
        assert fails
    assert seen == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    gc.unfreeze()
