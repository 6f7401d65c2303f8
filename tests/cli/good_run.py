"""A run of the smallest model, that has nothing to complain of; tests spoil it."""


def good_run(rounds: int = 3, global_sequences: int = 4, micro_batch_sequences: int = 2) -> str:
    """Return a valid run file."""
    return f"""\
[run]
name = "tiny"
rounds = {rounds}
[model]
family = "gpt3"
layers = 1
heads = 1
model_dim = 8
sequence_tokens = 8
[data]
source = "python-stdlib"
max_bytes = "20 kB"
validation_fraction = 0.1
[batch]
global_sequences = {global_sequences}
micro_batch_sequences = {micro_batch_sequences}
[optimizer]
learning_rate = 1e-3
[validation]
every_rounds = 1
"""


GOOD_RUN = good_run()
