"""What `--help` shows of a command: its docstring, and exit codes that are worth knowing. Pure."""

from collections.abc import Sequence

from atom.cli.shell.exit_codes import MEANINGS, ExitCode

_LOOKING = (ExitCode.ADDRESS, ExitCode.CONTROL)
_STARTING = (
    ExitCode.CONFIG, ExitCode.PORT, ExitCode.STORAGE, ExitCode.DEVICE, ExitCode.MODEL,
    ExitCode.LEFT_LATE, ExitCode.IDENTITY,
)  # fmt: skip

WORTH_KNOWING: dict[str, Sequence[ExitCode]] = {
    "start": _STARTING,
    "join": sorted((*_STARTING, ExitCode.ADDRESS, ExitCode.MISMATCH, ExitCode.TRUST)),
    "id": (ExitCode.CONFIG, ExitCode.ADDRESS, ExitCode.STORAGE),
    "bootstrap": (ExitCode.CONFIG, ExitCode.ADDRESS, ExitCode.PORT),
    "plan": (ExitCode.CONFIG, ExitCode.STORAGE, ExitCode.DEVICE, ExitCode.MODEL),
    "compile": (ExitCode.CONFIG, ExitCode.STORAGE, ExitCode.DEVICE, ExitCode.MODEL),
    "demo": (ExitCode.FAULT, ExitCode.STORAGE),
    "status": _LOOKING,
    "watch": (*_LOOKING, ExitCode.INTERRUPTED),
    "dashboard": (ExitCode.ADDRESS, ExitCode.PORT, ExitCode.CONTROL),
    "contributions": (*_LOOKING, ExitCode.TRUST),
    "plot": (ExitCode.ADDRESS, ExitCode.STORAGE, ExitCode.TRUST),
    "version": (),
    "pause": (ExitCode.CONTROL,),
    "resume": (ExitCode.CONTROL,),
    "leave": (ExitCode.CONTROL,),
    "set": (ExitCode.CONFIG, ExitCode.STORAGE, ExitCode.DEVICE, ExitCode.CONTROL),
    "info": (ExitCode.CONTROL,),
    "trace": (ExitCode.STORAGE, ExitCode.CONTROL),
    "export": (ExitCode.STORAGE, ExitCode.MODEL, ExitCode.TRUST),
    "doctor": (ExitCode.CONFIG, ExitCode.ADDRESS, ExitCode.DIAGNOSIS),
    "service": (ExitCode.CONFIG, ExitCode.ADDRESS),
}
"""By command; `atom --help` has all of them."""


def shown(name: str, docstring: str) -> str:
    """Paragraphs as wide as the terminal, examples line by line, exit codes below."""
    paragraphs = [_flowing(paragraph) for paragraph in docstring.split("\n\n")]
    codes = [f"{int(code)}: {MEANINGS[code]}" for code in WORTH_KNOWING[name]]
    if codes:
        paragraphs.append("\n".join(["[bold]Exit codes[/] besides 0 and 2", *codes]))
    return "\n\n".join(paragraphs)


def _flowing(paragraph: str) -> str:
    lines = [line.strip() for line in paragraph.strip().splitlines()]
    return ("\n" if any(line.startswith("atom ") for line in lines) else " ").join(lines)
