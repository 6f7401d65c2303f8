"""PyTorch is loaded without the garbage collector, which works again afterwards."""

import gc
import importlib

import pytest

from atom.cli.train_commands import load_torch


def test_the_collector_rests_during_the_import_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        assert not gc.isenabled()
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", load)
    frozen = gc.get_freeze_count()
    with pytest.raises(ImportError):
        load_torch()
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    gc.unfreeze()
