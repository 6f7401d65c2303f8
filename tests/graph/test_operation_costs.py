"""Estimated memory and work of operations, compared with autograd's and torch's figures."""

import pytest
import torch
from big_and_small import GPT3_NAMES, HF_NAMES, MODELS, Batch, bert, gpt3, llama, tokens
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from traced_modules import ZOO, Alone, TiedGPT, tokens_and_targets

from atom.graph.chain import Chain
from atom.graph.costs import call_cost
from atom.graph.costs.operations import operation_costs
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3


def kept_in_earnest(model: nn.Module, batch: Batch) -> int:
    """Return the bytes that autograd keeps, without the memory of the model and of the batch."""
    given = [*model.parameters(), *model.buffers(), *batch.values()]
    own = {t.untyped_storage().data_ptr() for t in given}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.train()(**batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def kept(costs: Chain) -> int:
    return sum(operation.working_bytes for operation in costs.operations)


def flops(costs: Chain) -> tuple[float, float]:
    return (
        sum(kernel.flops for one in costs.operations for kernel in one.forward),
        sum(kernel.flops for one in costs.operations for kernel in one.backward),
    )


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_is_kept_is_what_autograd_keeps(name: str) -> None:
    make, batch = MODELS[name]
    model = make()
    costs = operation_costs(trace(model, batch))
    assert kept(costs) == kept_in_earnest(model, batch)


def test_a_gpu_keeps_one_byte_for_a_dropped_element() -> None:
    graph = trace(gpt3(0.1), tokens(*GPT3_NAMES))
    dropped = [i for i, node in enumerate(graph.calls) if "dropout.default" in str(node.target)]
    on_cpu, on_gpu = operation_costs(graph), operation_costs(graph, fused=True)
    elements = 2 * 32 * 64
    for index in dropped:
        masks = [
            costs.operations[index].working_bytes % (4 * elements) for costs in (on_cpu, on_gpu)
        ]
        assert masks == [0, elements]
    assert kept(on_gpu) < kept(on_cpu)


@pytest.mark.parametrize(
    ("model", "names"),
    [(gpt3(0.1), GPT3_NAMES), (llama("eager"), HF_NAMES), (bert("eager"), HF_NAMES)],
)
def test_operations_counted_as_torch_counts_them(model: nn.Module, names: tuple[str, str]) -> None:
    batch = tokens(*names)
    with FlopCounterMode(display=False) as counter:
        loss = model.train()(**batch)
        forward = counter.get_total_flops()
        loss.backward()
    backward = counter.get_total_flops() - forward
    assert flops(operation_costs(trace(model, batch))) == (forward, backward)


def test_fused_attention_is_counted_too() -> None:
    graph = trace(gpt3(), tokens(*GPT3_NAMES))
    attention = next(
        one for one in operation_costs(graph).operations if one.name.endswith("attention")
    )
    assert attention.name == "blocks.0.attention scaled_dot_product_attention"
    products = 2 * 2 * 4 * 32 * 32 * 16
    assert sum(kernel.flops for kernel in attention.forward) == 2 * products
    assert sum(kernel.flops for kernel in attention.backward) == 5 * products


@pytest.mark.parametrize("name", ["buffers", "in place", "learned bias", "regions"])
def test_every_graph_has_costs(name: str) -> None:
    make, batch = ZOO[name]
    model = make()
    graph = trace(model, batch(0))
    costs = operation_costs(graph)
    assert len(costs.operations) == len(graph.calls)
    assert kept(costs) == pytest.approx(kept_in_earnest(model, batch(0)), rel=0.25)
    for value in costs.values:
        assert -1 <= value.made_by <= value.last_used_by < len(graph.calls)


def test_a_call_that_no_fake_can_run_is_judged_by_its_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The backward of a custom function may require a GPU."""
    graph = trace(TiedGPT(layers=1), tokens_and_targets())
    exact = operation_costs(graph)

    def fails(*_: object) -> None:
        raise AssertionError("no fake kernel")

    monkeypatch.setattr(call_cost, "_dissect", fails)
    judged = operation_costs(graph)
    assert kept(judged) >= kept(exact)
    assert judged.values[0] == exact.values[0]


def test_what_a_function_holds_counts_though_autograd_does_not_know_of_it() -> None:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            (held,) = Alone.apply(self.layer(hidden))
            return held.sum()

    graph = trace(Holding(), {"hidden": torch.randn(4, 16)})
    (own,) = (each for each in operation_costs(graph).operations if "Alone" in each.name)
    assert own.working_bytes == 2 * 4 * 16 * 4, "sine and cosine"


def test_values_are_made_once_and_used_last_somewhere() -> None:
    graph = trace(gpt3(), tokens(*GPT3_NAMES))
    chain = operation_costs(graph)
    last = len(graph.calls) - 1
    ids = 2 * 32 * 8
    batch = [value for value in chain.values if value.made_by == -1]
    assert [(value.size_bytes, value.last_used_by) for value in batch] == [
        (ids, 1),
        (ids, last - 1),
    ]
    # Views of the logits share their memory, which is counted once.
    logits = 2 * 32 * 128 * 4
    assert any(value.size_bytes == logits for value in chain.values)
    made = [value.made_by for value in chain.values if value.made_by >= 0]
    assert len(made) == len(set(made))
    assert all(value.last_used_by == max(value.used_by) for value in chain.values[:-1])
    loss = chain.values[-1]
    assert (loss.size_bytes, loss.made_by, loss.last_used_by) == (4, last, last)
    assert chain.forbidden == graph.forbidden_cuts


def test_the_head_holds_its_logits_twice_in_its_backward() -> None:
    graph = trace(GPT3(gpt3().config, dtype=torch.bfloat16), tokens(*GPT3_NAMES))  # type: ignore[arg-type]
    loss, float32 = operation_costs(graph).operations[-1], 2 * 32 * 128 * 4
    assert loss.working_bytes >= float32
    assert loss.transient_bytes >= 2 * float32
