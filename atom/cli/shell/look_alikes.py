"""What a stream gets whose encoding lacks a character: one as wide that looks like it."""

import codecs

NAME = "look-alikes"
"""As an error handler of streams, once this is imported."""
_LOOK_ALIKES = str.maketrans("…✓✗·→±│─—≤≥⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", ".+x->~|--<>/-\\|/-\\|/-")
_ELSE = "?"


def look_alikes(problem: UnicodeError) -> tuple[str, int]:
    """The replacement, and where to go on. Raises: UnicodeError when reading."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    lacking = problem.object[problem.start : problem.end]
    replaced = (each.translate(_LOOK_ALIKES) for each in lacking)
    return "".join(each if each.isascii() else _ELSE for each in replaced), problem.end


codecs.register_error(NAME, look_alikes)
