"""All scenes: hint → scene."""

from tests.hints.scenes_of_code import OF_CODE, OF_CONFIGS
from tests.hints.scenes_of_files import FILES, OF_ADDRESSES
from tests.hints.scenes_of_runs import OF_RUNS
from tests.hints.scenes_of_state import OF_STATE
from tests.hints.scenes_of_texts import OF_TEXTS

SCENES = {**OF_RUNS, **FILES, **OF_STATE, **OF_ADDRESSES, **OF_CODE, **OF_CONFIGS, **OF_TEXTS}
