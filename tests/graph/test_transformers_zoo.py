"""Unmodified models of `transformers` train swapped as they train whole, bit by bit."""

import sys
from functools import lru_cache

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import transformers  # noqa: E402
from swapped import CUTS, assert_equal, eager, plain, swapped  # noqa: E402
from transformers_zoo import MODELS, Loss, batch, make, tokens  # noqa: E402

from atom.base.errors import ModelError  # noqa: E402
from atom.graph.program import build_program  # noqa: E402
from atom.graph.trace import trace  # noqa: E402
from atom.graph.traced import Graph  # noqa: E402
from atom.graph.verify import verify_against_eager  # noqa: E402

DROPOUTS = [0.0, 0.1]


@lru_cache(maxsize=1)
def traced(name: str, dropout: float) -> tuple[nn.Module, Graph]:
    model = make(name, dropout)
    return model, trace(model, batch(name, 0))


@pytest.mark.parametrize(
    ("name", "dropout", "cut"),
    [(name, dropout, cut) for name in MODELS for dropout in DROPOUTS for cut in CUTS],
)
def test_swapped_is_whole(name: str, dropout: float, cut: str) -> None:
    model, graph = traced(name, dropout)
    program = CUTS[cut](graph)
    assert len(program.sub_models) == 2 or (cut == "finest" and len(program.sub_models) > 40)
    batches, seeds = [batch(name, 1)], [7]
    expected = eager(model, batches, seeds)
    assert all(gradient.any() for gradient in expected[1].values())
    assert_equal(plain(model, program, batches, seeds), expected)
    assert_equal(swapped(model, program, batches, seeds), expected)
