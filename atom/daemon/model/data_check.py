"""Whether this peer has the data that its run trains on, and if not, what it has instead."""

from atom.base.errors import MismatchError
from atom.config.data_section import Data
from atom.models.data.samples import Samples


def check_data(samples: Samples, data: Data, wanted_digest: str) -> None:
    """`wanted_digest`: of the run's manifest; empty: peers may have different data.

    Raises: MismatchError with what was found here. How much the run has, no digest tells: its other
    daemons say it when they start.
    """
    if not wanted_digest or samples.digest == wanted_digest:
        return
    raise MismatchError(
        f"the training data here differ from the run's: here are {samples.told}",
        f"{_what_is_wanted(data)}; daemons that are in the run say `data:` when they start: "
        "ask what the founder's says",
    )


def _what_is_wanted(data: Data) -> str:
    match data.source:
        case "text":
            named = ", ".join(data.paths)
            return f"get what the founder named {named}: the same bytes in the same order"
        case "python-stdlib":
            return "take the founder's version of Python, whose own source is the text"
        case "datasets":
            return f"get the founder's table {data.path}, with the same rows in the same order"
        case "module":
            return "the dataset of the owner's module has to be the same on every machine"
