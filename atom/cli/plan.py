"""`atom plan`: what this box would do for a run. Needs no weights, no text and no swarm."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import typer

from atom.base.units import parse_bytes
from atom.cli.plan_text import plan_text
from atom.cli.terminal import stderr_console, stdout_console
from atom.daemon.load_hiding import HidingTokens, Rates
from atom.daemon.planning import Plan, plan_run, tokens_that_hide_loads

_FLOPS = {"GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15}


def show_plan(
    run_file: Path, peer_file: Path | None, link: str | None, compute: str | None, as_json: bool
) -> None:
    """Prints the plan. Raises: ConfigError, ModelError, DeviceError; typer.BadParameter."""
    rates = _rates(link, compute)
    with stderr_console().status("reading the model"):
        plan = plan_run(run_file, peer_file)
    hiding = None if rates is None else tokens_that_hide_loads(plan, rates)
    if as_json:
        typer.echo(json.dumps(plan_json(plan, hiding), indent=2))
    else:
        stdout_console().print(plan_text(plan, hiding))


def plan_json(plan: Plan, hiding: HidingTokens | None) -> dict[str, Any]:
    """JSON-serialisable; bytes are integers."""
    host, device = plan.host, plan.device
    over = device.budget_bytes is not None and device.total_bytes > device.budget_bytes
    return {
        "run": plan.run,
        "model": dataclasses.asdict(plan.model) | {"precision": plan.precision},
        "parameters": plan.parameters,
        "host": {
            "arenas": dict(host.arenas),
            "total_bytes": host.total_bytes,
            "have_bytes": host.have_bytes,
            "fits": host.total_bytes <= host.have_bytes,
        },
        "device": dataclasses.asdict(device)
        | {"total_bytes": device.total_bytes, "fits": not over},
        "sub_models": [dataclasses.asdict(part) for part in plan.sub_models],
        "pass": dataclasses.asdict(plan.training_pass),
        "tokens_that_hide_loads": None if hiding is None else dataclasses.asdict(hiding),
    }


def _rates(link: str | None, compute: str | None) -> Rates | None:
    """Both, or neither. Raises: typer.BadParameter."""
    if link is None and compute is None:
        return None
    if link is None or compute is None:
        raise typer.BadParameter("give both, for example --link '24 GB/s' --compute '90 TFLOP/s'")
    return Rates(_bytes_per_s(link), _flops_per_s(compute))


def _bytes_per_s(text: str) -> float:
    try:
        rate = parse_bytes(text.strip().removesuffix("/s"))
    except ValueError:
        rate = 0
    if rate <= 0 or not text.strip().endswith("/s"):
        raise typer.BadParameter(f"{text!r} is no rate, such as '24 GB/s'", param_hint="--link")
    return rate


def _flops_per_s(text: str) -> float:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Z]FLOP/s)\s*", text)
    rate = float(match[1]) * _FLOPS.get(match[2], 0.0) if match else 0.0
    if rate <= 0:
        hint = f"{text!r} is no rate, such as '90 TFLOP/s'"
        raise typer.BadParameter(hint, param_hint="--compute")
    return rate
