"""What is wrong with a command line, in words: which option, which value, and what it is for."""

from collections.abc import Mapping
from typing import Any

import typer


def usage_words(problem: typer.TyperException) -> tuple[str, str]:
    """Message and hint."""
    context = getattr(problem, "ctx", None)
    path = "atom" if context is None else context.command_path
    page = f"see `{path} --help`"
    options = getattr(problem, "possibilities", None)
    if options:
        return _sentence(str(problem.message)), f"did you mean {' or '.join(sorted(options))}?"
    message, _, suggestion = problem.format_message().partition(" Did you mean ")
    if suggestion:
        return _sentence(message), f"did you mean {suggestion}"
    about = _parameter(problem, context)
    hint = f"{about.help.rstrip('.')}; {page}" if about is not None and about.help else page
    if not isinstance(problem, typer.BadParameter) or not problem.message:
        return _sentence(message), hint
    name = problem.param_hint or (about and about.get_error_hint()) or "an argument"
    return f"{str(name).strip(chr(39))}: {_what(problem)}", hint


def _what(problem: typer.BadParameter) -> str:
    """With the value, which the parser's own words leave out."""
    detail = _first_error(problem.__cause__)
    if detail is None:
        return str(problem.message)
    from atom.config.problems import words_of  # pydantic: a tenth of a second

    return words_of(detail)


def _first_error(cause: BaseException | None) -> Mapping[str, Any] | None:
    """The parser checks numbers by pydantic."""
    errors = getattr(cause, "errors", None)
    return None if errors is None else errors()[0]


def _parameter(problem: typer.TyperException, context: Any) -> Any:
    """The option or argument that it is about; None: of none, or of one without a name."""
    found = getattr(problem, "param", None)
    hint = getattr(problem, "param_hint", None)
    if found is not None or context is None or hint is None:
        return found
    named = (each for each in context.command.params if hint in each.opts or hint == each.metavar)
    return next(named, None)


def _sentence(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")
