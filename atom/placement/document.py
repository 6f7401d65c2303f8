"""A plan as JSON: every operation, sub-model and cut with its figures. Pure."""

import dataclasses
from typing import Any

from atom.graph.chain import Chain, Operation
from atom.graph.ir import Program, SubModel
from atom.placement.choice import Choice
from atom.placement.pieces import Piece

FORMAT = 1


def plan_document(chain: Chain, program: Program, choice: Choice) -> dict[str, Any]:
    """JSON-serialisable. Seconds and bytes are of one micro-batch unless a key says `pass`."""
    if choice.remembers and chain.remembering is not None:
        chain = chain.remembering
    return {
        "format": FORMAT,
        "graph_hash": program.graph_hash,
        "source_hash": program.source_hash,
        "micro_batches": choice.micro_batches,
        "slots": choice.arrangement.slots,
        "remembers": choice.remembers,
        "host_bytes": choice.host_bytes,
        "device_memory": dataclasses.asdict(choice.memory)
        | {"total_bytes": choice.memory.total_bytes},
        "pass": {
            "seconds": choice.timeline.seconds,
            "computing": choice.timeline.computing,
            "load_s": choice.timeline.busy_s("load"),
            "compute_s": choice.timeline.busy_s("compute"),
            "gradients_out_s": choice.timeline.busy_s("gradients"),
        },
        "sub_models": [
            _sub_model(sub_model, piece, choice)
            for sub_model, piece in zip(program.sub_models, choice.pieces, strict=True)
        ],
        "cuts": [_cut(program, sub_model) for sub_model in program.sub_models[:-1]],
        "operations": [_operation(number, each) for number, each in enumerate(chain.operations)],
    }


def _sub_model(sub_model: SubModel, piece: Piece, choice: Choice) -> dict[str, Any]:
    s = sub_model.index
    return {
        "index": s,
        "name": sub_model.name,
        "class": sub_model.class_name,
        "operations": [sub_model.first_call, sub_model.end_call],
        "parameter_elements": piece.elements,
        "forward_s": piece.forward_s,
        "backward_s": piece.backward_s,
        "working_bytes": piece.working_bytes,
        "transient_bytes": piece.transient_bytes,
        "in_bytes": piece.in_bytes,
        "out_bytes": piece.out_bytes,
        "resident": s in choice.arrangement.resident,
        "activations_kept": s in choice.arrangement.kept,
        "values_offloaded": s in choice.waiting,
    }


def _cut(program: Program, sub_model: SubModel) -> dict[str, Any]:
    """What lives across the cut behind a sub-model: made before it, needed after it."""
    after = program.sub_models[sub_model.index + 1 :]
    needed = {name for later in after for name in later.inputs} - set(program.batch_inputs)
    made = {n for earlier in program.sub_models[: sub_model.index + 1] for n in earlier.outputs}
    values = {name: program.values[name].size_bytes for name in sorted(needed & made)}
    return {
        "after": sub_model.index,
        "position": sub_model.end_call,
        "bytes": sum(values.values()),
        "values": values,
    }


def _operation(number: int, operation: Operation) -> dict[str, Any]:
    return {"index": number} | dataclasses.asdict(operation)
