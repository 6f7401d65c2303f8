"""Commands as a person sees them: in `--help`, and in what a shell offers."""

import textwrap
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

_APOSTROPHE, _TYPOGRAPHIC = "'", "\N{RIGHT SINGLE QUOTATION MARK}"
_OFFERED_COLUMNS = 76
"""Of what a shell says beside a word: Typer breaks lines at 80."""


class _Told:
    """Typer speaks of types as Python calls them, leaves 45 characters of what a command does to
    shells, and loses apostrophes in zsh."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for each in parameters:
            if isinstance(each, TyperArgument) or (isinstance(each, TyperOption) and each.is_flag):
                each.display_type_rich = _no_type  # type: ignore[method-assign]
        return list(parameters)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first paragraph, whole."""
        return str(self.help or "").partition("\n\n")[0]  # type: ignore[attr-defined]

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        offered = list(super().shell_complete(ctx, incomplete))  # type: ignore[misc]
        for item in offered:
            words = (item.help or "").replace(_APOSTROPHE, _TYPOGRAPHIC)
            item.help = textwrap.shorten(words, _OFFERED_COLUMNS, placeholder=" …")
        return offered


class ToldCommand(_Told, TyperCommand):
    """One command."""


class ToldGroup(_Told, TyperGroup):
    """`atom` itself."""


def _no_type(ctx: object) -> None:
    """A flag has none, and an argument is called by what it is."""
