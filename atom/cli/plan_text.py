"""A plan on a terminal: memory, sub-models, and the schedule as a chart. Pure."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atom.base.units import format_bytes
from atom.daemon.load_hiding import HidingTokens
from atom.daemon.pass_steps import PassStep
from atom.daemon.planning import DevicePlan, HostPlan, PassPlan, Plan, PlannedSubModel

MAX_SUB_MODELS = 16
MAX_STEPS = 12
_COMPUTES, _LOADS, _RESTS = "█", "░", "·"


def plan_text(plan: Plan, hiding: HidingTokens | None) -> RenderableType:
    """All of it, one below the other."""
    return Group(
        _headline(plan),
        *_section("host memory", _host(plan.host, plan.parameters)),
        *_section(_device_title(plan.device), _device(plan.device)),
        *_section(_cut_title(plan), _sub_models(plan.sub_models)),
        *_section(_pass_title(plan), _traffic(plan.training_pass, hiding)),
        *_section(
            f"schedule of a pass ({_LOADS} loads, {_COMPUTES} computes, {_RESTS} rests)",
            schedule_chart(plan.training_pass.steps, plan.device.slots),
        ),
    )


def schedule_chart(steps: Sequence[PassStep], slots: int) -> RenderableType:
    """Time goes down: one row per step, one column per slot, and what is computed."""
    table = Table(box=None, pad_edge=False, header_style="quiet", padding=(0, 3, 0, 0))
    table.add_column("step", justify="right")
    for slot in range(slots):
        table.add_column(f"slot {slot}")
    table.add_column("computes")
    for number, step in enumerate(steps[:MAX_STEPS]):
        if step.waits:
            waiting = [_slot_while_waiting(s, step) for s in step.slots]
            table.add_row("", *waiting, Text("waits for the load", "yellow"))
        loads = [sub_model for sub_model in step.loads if sub_model != step.sub_model]
        cells = [_slot(s, step.sub_model, loads) for s in step.slots]
        table.add_row(str(number), *cells, _computes(step))
    left = len(steps) - MAX_STEPS
    return Group(table, Text(f"and {left:,} more steps", "quiet")) if left > 0 else table


def _slot(held: int | None, computing: int | None, loading: Sequence[int]) -> Text:
    if held is None:
        return Text("")
    if held == computing:
        return Text(f"{_COMPUTES * 2} {held}", "name")
    if held in loading:
        return Text(f"{_LOADS * 2} {held}", "yellow")
    return Text(f"{_RESTS * 2} {held}", "quiet")


def _slot_while_waiting(held: int | None, step: PassStep) -> Text:
    """Other loads stand behind the one that is waited for."""
    queued = held != step.sub_model and held in step.loads
    return _slot(None if queued else held, None, (step.sub_model,))


def _computes(step: PassStep) -> Text:
    kinds = [word for word, on in (("forward", step.forward), ("backward", step.backward)) if on]
    times = f" x {step.micro_batches}" if step.micro_batches > 1 else ""
    out = ", gradients out" if step.gradient_out else ""
    return Text(f"{' and '.join(kinds)} of {step.sub_model}{times}{out}")


def _headline(plan: Plan) -> Text:
    model = plan.model
    return Text.assemble(
        (plan.run, "name"),
        f"   {plan.parameters:,} parameters in {plan.precision}, {model.layers} blocks of width "
        f"{model.model_dim:,}, sequences of {model.sequence_tokens:,} tokens",
    )


def _section(title: str, content: RenderableType) -> Iterable[RenderableType]:
    return Text(), Text(title, "bold"), Padding(content, (0, 0, 0, 2), expand=False)


def _rows(rows: Iterable[tuple[str, str, Text | str]]) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def _host(host: HostPlan, parameters: int) -> Table:
    per_parameter = host.total_bytes / parameters
    verdict = _verdict(host.total_bytes, host.have_bytes, "may be used")
    total = Text.assemble(f"{per_parameter:.0f} bytes per parameter; ", verdict)
    rows = [(name, format_bytes(size), "") for name, size in host.arenas]
    return _rows([*rows, ("total", format_bytes(host.total_bytes), total)])


def _device_title(device: DevicePlan) -> str:
    has = "" if device.budget_bytes is None else f" of {format_bytes(device.budget_bytes)}"
    return f"device memory ({device.kind}{has})"


def _device(device: DevicePlan) -> Table:
    verdict: Text | str = "no limit is set"
    if device.budget_bytes is not None:
        verdict = _verdict(device.total_bytes, device.budget_bytes, "may be used")
    slots = f"{device.slots} for weights, as many for float32 gradients"
    return _rows(
        [
            ("slots", format_bytes(device.slot_bytes), slots),
            ("activations", format_bytes(device.working_bytes), "of the largest sub-model"),
            ("between sub-models", format_bytes(device.boundary_bytes), "for all micro-batches"),
            ("total", format_bytes(device.total_bytes), verdict),
        ]
    )


def _verdict(need_bytes: int, have_bytes: int, what: str) -> Text:
    fits = need_bytes <= have_bytes
    text = f"{format_bytes(have_bytes)} {what}"
    return Text(f"fits: {text}", "good") if fits else Text(f"too much: only {text}", "bad")


def _cut_title(plan: Plan) -> str:
    layers = plan.sub_models[-1].last_layer + 1
    count = len(plan.sub_models)
    return f"{layers} layers in {count} sub-model{'' if count == 1 else 's'}"


def _sub_models(parts: Sequence[PlannedSubModel]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="quiet")
    for title in ("#", "layers", "load", "on the device", "GFLOP forward"):
        table.add_column(title, justify="left" if title == "layers" else "right")
    shown = list(parts)
    if len(parts) > MAX_SUB_MODELS:
        shown = [*parts[: MAX_SUB_MODELS - 2], *parts[-1:]]
    for part in shown:
        if part is shown[-1] and len(shown) < len(parts):
            table.add_row("…", f"{len(parts) - len(shown)} more")
        names = [part.first_name, part.last_name]
        table.add_row(
            str(part.index),
            " … ".join(dict.fromkeys(names)),
            format_bytes(part.load_bytes),
            format_bytes(part.need_bytes),
            f"{part.flops / 1e9:,.1f}",
        )
    return table


def _pass_title(plan: Plan) -> str:
    planned = plan.training_pass
    return (
        f"a pass of {planned.micro_batches} micro-batch"
        f"{'' if planned.micro_batches == 1 else 'es'} of {plan.micro_batch_sequences}"
        f" x {plan.model.sequence_tokens:,} tokens: {planned.tokens:,} tokens"
    )


def _traffic(planned: PassPlan, hiding: HidingTokens | None) -> RenderableType:
    table = _rows(
        [
            ("to the device", format_bytes(planned.first_bytes_in), "first pass after a step"),
            ("", format_bytes(planned.next_bytes_in), "further passes of the round"),
            ("from the device", format_bytes(planned.bytes_out), "gradients"),
        ]
    )
    return Group(table, _hiding(planned, hiding))


def _hiding(planned: PassPlan, hiding: HidingTokens | None) -> Text:
    if hiding is None:
        return Text("with --link and --compute: how many tokens hide the loads", "quiet")
    enough = planned.tokens >= hiding.in_sum
    text = f"loads hide behind computing from {hiding.in_sum:,} tokens per pass on"
    if hiding.one_by_one is not None and hiding.one_by_one > hiding.in_sum:
        text += f", every single one from {hiding.one_by_one:,}"
    return Text(text, "good" if enough else "yellow")
