"""A run that is founded in a moment: its run file, a peer file, and its text."""

TINY_RUN = """
[run]
name = "tiny"
[model]
family = "gpt3"
layers = 2
heads = 2
model_dim = 16
vocabulary_size = 256
sequence_tokens = 8
[data]
source = "text"
paths = ["text.txt"]
[batch]
global_sequences = 8
micro_batch_sequences = 4
[optimizer]
learning_rate = 1e-3
"""
TINY_PEER = '[device]\nkind = "cpu"\ncpu_threads = 1\n{device}\n[data]\npaths = ["text.txt"]\n'
TINY_TEXT = "A peer gives what it has, and takes its part. " * 40
