"""Where to cut a model into sub-models: pure arithmetic over a chain of operations.

The problem
-----------
Given are n operations in the order in which they run, each with seconds and bytes for one micro-
batch (`Chain`); rates of the link between host and device (`Machine`); memory, C micro-batches
per pass, precision and slots (`Terms`). Wanted is a *partition*: S sub-models, each a run of
consecutive operations, that together are all of them. Ingredients and figure 13 of the paper (arXiv
2403.10504, sections III-B and III-D) in this notation:

    P_s        distinct parameter elements of sub-model s; a tied one counts once
    F_s, B_s   seconds of its forward and backward, all C micro-batches
    L_s, G_s   seconds to load its parameters, to send its gradients (float32) out
    A_s        activations of one micro-batch while its backward runs: what forward keeps, and the
               most that one operation holds besides
    out_s      bytes of values that it makes and later sub-models use

A pass is layer-major. All C micro-batches go forward through sub-models 0 … S-2; through S-1, the
*turn*, each goes forward and backward at once, so nothing is computed twice and its A holds the
head's logits; then backward through S-2 … 0, each first computed again. Meanwhile the next
sub-model loads and the last one's gradients leave. With k slots, the last k sub-models are still
there when the backward comes to them. The paper demands that accumulated computing covers every
load; here what is not covered costs the time it takes. Minimise

    seconds =   L_0 + G_0                                      nothing computes meanwhile
              + Σ_{s<S-1} F_s + (F + B)_{S-1} + Σ_{s<S-1} (F_s + B_s)
              + Σ_{s<S-1} (L_{s+1} - F_s)+                     waiting for loads, forward
              + Σ_{s<S-k} (L_s - (F + B)_{s+1})+               and backward
              + Σ_{s<S-1} (G_{s+1} - (F + B)_s)+               and for gradients to be out,

then, among equals, Σ out_s, subject to

    ((k + 1) · element bytes + gradient slots · 4) · max P_s + max A_s
        + C · (Σ out_s + batch) + reserved  ≤  device bytes,

because all slots are as large as the largest sub-model; because a backward holds its parameters'
gradients once more, in their own precision, before they are added to a slot; and because values
between sub-models, and the batch, stay on the device for all C micro-batches.

Compared with a pass of the engine, the seconds are an upper bound where more than two slots let a
load begin earlier than one sub-model ahead, where a short sub-model's idle link helps the load
after the next, and where the first sub-models are still loaded from the pass before. They are not a
bound where loads slow computing down, or where loads and gradients share one direction's rate. Of
a value that skips sub-models, value and gradient exist at once for a while; the gradient is not
counted here (a plan counts it). Values that are the same in every micro-batch are part of
`reserved`, once.

`partition` solves it: "exhaustive" as the paper's Algorithm 1 does (`algorithm_one.py`), "dynamic"
with the same answer in a fraction of the time (`dynamic.py`). `cost_of` prices any cut.
"""

from atom.graph.partition.chain import Chain, Machine, Operation, Partition, Terms, Value
from atom.graph.partition.price import cost_of
from atom.graph.partition.solve import (
    Solver,
    find_partition,
    partition,
    refusal,
    smallest_device_bytes,
)

__all__ = [
    "Chain",
    "Machine",
    "Operation",
    "Partition",
    "Solver",
    "Terms",
    "Value",
    "cost_of",
    "find_partition",
    "partition",
    "refusal",
    "smallest_device_bytes",
]
