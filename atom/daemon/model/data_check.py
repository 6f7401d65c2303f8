"""Whether this peer has the data that its run trains on, and if not, what it has instead."""

from atom.base.errors import MismatchError
from atom.config.model_and_data import Data
from atom.models.data.corpus import Amount
from atom.models.data.samples import Samples
from atom.swarm.records.manifest import Manifest


def check_data(samples: Samples, data: Data, manifest: Manifest) -> None:
    """A manifest without a digest of data lets peers have different ones.

    Raises: MismatchError with what was found here, and how much the run has.
    """
    if not manifest.data_digest or samples.digest == manifest.data_digest:
        return
    raise MismatchError(
        f"the training data here differ from the run's: here are {samples.amount}"
        + _what_there_is(samples, run_amount(manifest)),
        _what_is_wanted(data),
    )


def run_amount(manifest: Manifest) -> Amount | None:
    """How much the run trains on; None: its founder's version did not say."""
    return None if manifest.data_amount is None else Amount(*manifest.data_amount)


def _what_there_is(samples: Samples, wanted: Amount | None) -> str:
    if wanted is None:
        return ""
    return ", as many, but others" if samples.amount == wanted else f"; the run has {wanted}"


def _what_is_wanted(data: Data) -> str:
    match data.source:
        case "text":
            named = ", ".join(data.paths)
            return f"get what the founder named {named}: the same bytes in the same order"
        case "python-stdlib":
            return (
                "take the founder's build of Python, whose own source is the text: another build "
                "of the same version may differ"
            )
        case "datasets":
            return f"get the founder's table {data.path}, with the same rows in the same order"
        case "module":
            return "the dataset of the owner's module has to be the same on every machine"
