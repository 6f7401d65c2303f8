"""A small language model written twice: as one plain function of its parameters, and cut by hand
into sub-models. It has what makes cutting hard: a tied weight, a value used by several sub-models,
dropout, and optionally a parameter used several times in each of several sub-models."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from atom.graph.ir import LayerCall, ParameterLayout, Program, SubModel

VOCABULARY, WIDTH, BLOCKS, TOKENS = 13, 8, 2, 6
STAGES = ("embed", "block0", "block1", "head")
FINEST = (("embed",), ("block0",), ("block1",), ("head",))
HALVES = (("embed", "block0"), ("block1", "head"))
WHOLE = (STAGES,)


def shapes(gain: bool) -> dict[str, tuple[int, ...]]:
    result: dict[str, tuple[int, ...]] = {"embed.weight": (VOCABULARY, WIDTH)}
    if gain:
        result["gain"] = (WIDTH,)
    for index in range(BLOCKS):
        result[f"block{index}.up.weight"] = (3 * WIDTH, WIDTH)
        result[f"block{index}.up.bias"] = (3 * WIDTH,)
        result[f"block{index}.down.weight"] = (WIDTH, 3 * WIDTH)
    result["head.bias"] = (VOCABULARY,)
    return result


def initial_value(name: str, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return 0.3 * torch.randn(shape, generator=generator)


def batches(sizes: Sequence[int], seed: int = 0) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "tokens": torch.randint(VOCABULARY, (size, TOKENS), generator=generator),
            "targets": torch.randint(VOCABULARY, (size, TOKENS), generator=generator),
        }
        for size in sizes
    ]


def run_stage(
    stage: str, values: dict[str, Tensor], parameters: dict[str, Tensor], dropout: float
) -> None:
    """Adds the stage's results to `values`: `x`, `x0` (the embedding, used by all), `loss`."""
    if stage == "embed":
        values["x0"] = F.embedding(values["tokens"], parameters["embed.weight"])
        values["x"] = F.dropout(2.0 * values["x0"], dropout)
    elif stage == "head":
        logits = F.linear(values["x"], parameters["embed.weight"], parameters["head.bias"])
        values["loss"] = F.cross_entropy(logits.flatten(0, 1), values["targets"].flatten())
    else:
        x = F.layer_norm(values["x"], (WIDTH,))
        if "gain" in parameters:
            x = torch.tanh(x * parameters["gain"]) * parameters["gain"]
        hidden = F.linear(x, parameters[f"{stage}.up.weight"], parameters[f"{stage}.up.bias"])
        x = F.linear(F.gelu(hidden), parameters[f"{stage}.down.weight"])
        values["x"] = values["x"] + F.dropout(x, dropout) + 0.5 * values["x0"]


def plain_loss(
    batch: dict[str, Tensor], parameters: dict[str, Tensor], dropout: float, head: Tensor
) -> Tensor:
    """The uncut model; `head` stands for the tied weight where the last stage uses it."""
    values = dict(batch)
    for stage in STAGES:
        used = {**parameters, "embed.weight": head} if stage == "head" else parameters
        run_stage(stage, values, used, dropout)
    return values["loss"]


def compile_by_hand(
    cut: Sequence[Sequence[str]], dropout: float, gain: bool = False
) -> tuple[Program, list[type[nn.Module]]]:
    layout = ParameterLayout.of(shapes(gain))
    sub_models, classes = [], []
    for index, stages in enumerate(cut):
        sub_model = _sub_model(index, cut, gain)
        sub_models.append(sub_model)
        classes.append(_module_class(sub_model, stages, layout, dropout))
    batch = "tokens", "targets"
    program = Program(layout, tuple(sub_models), batch, "loss", "", f"{cut}{dropout}{gain}")
    return program, classes


def _sub_model(index: int, cut: Sequence[Sequence[str]], gain: bool) -> SubModel:
    stages, last = cut[index], len(cut) - 1
    names = [
        name
        for name in shapes(gain)
        if name.split(".")[0] in stages
        or (name == "embed.weight" and "head" in stages)
        or (name == "gain" and any(stage.startswith("block") for stage in stages))
    ]
    needs_x0 = any(stage.startswith("block") for part in cut[index:] for stage in part)
    inputs = [name for name, stage in (("tokens", "embed"), ("targets", "head")) if stage in stages]
    if index > 0:
        inputs += [f"x.{index - 1}"]
        inputs += ["x0"] if any(stage.startswith("block") for stage in stages) else []
    outputs = ["loss"] if index == last else [f"x.{index}"]
    if index == 0 and index < last and needs_x0:
        outputs.append("x0")
    paths = tuple((f"part.{name.replace('.', '_')}", name) for name in names)
    grads = tuple(name not in ("tokens", "targets") for name in inputs)
    return SubModel(
        index, paths, tuple(inputs), tuple(outputs), grads,
        layers=(LayerCall(f"Part{index}", (), ()),),
    )  # fmt: skip


def _module_class(
    sub_model: SubModel, stages: Sequence[str], layout: ParameterLayout, dropout: float
) -> type[nn.Module]:
    class Part(nn.Module):
        calls: list[tuple[bool, ...]] = []  # noqa: RUF012 - a record for the tests

        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Module()
            for path, name in sub_model.parameters:
                shape = layout.by_name[name].shape
                self.part.register_parameter(
                    path.removeprefix("part."), nn.Parameter(torch.empty(shape))
                )

        def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
            type(self).calls.append(
                (torch.is_grad_enabled(), *(value.requires_grad for value in inputs))
            )
            values = dict(zip(sub_model.inputs, inputs, strict=True))
            if sub_model.index > 0:
                values["x"] = values.pop(f"x.{sub_model.index - 1}")
            parameters = {name: self.get_parameter(path) for path, name in sub_model.parameters}
            for stage in stages:
                run_stage(stage, values, parameters, dropout)
            values[f"x.{sub_model.index}"] = values["x"]
            return tuple(values[name] for name in sub_model.outputs)

    return Part
