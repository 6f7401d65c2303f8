"""Runs that are founded in a moment: their run files, a peer file, and their text."""

TEXT = 'source = "text"\npaths = ["text.txt"]'
GPT3 = 'family = "gpt3"\nlayers = 2\nheads = 2\nmodel_dim = 16\nsequence_tokens = 8'
LLAMA = 'huggingface = "config.json"\nsequence_tokens = 8'
_RUN = """
[run]
name = "{name}"
seed = 3
[model]
{model}
[data]
{data}
[batch]
global_sequences = 8
micro_batch_sequences = 4
[optimizer]
learning_rate = {learning_rate}
{more}
"""


def run_text(
    name: str, model: str, data: str = TEXT, more: str = "", learning_rate: float = 1e-3
) -> str:
    """A run file; `more` goes on in its section of the optimizer."""
    parts = {"name": name, "model": model, "data": data, "more": more}
    return _RUN.format(learning_rate=learning_rate, **parts)


TINY_RUN = run_text("tiny", f"{GPT3}\nvocabulary_size = 256")
TINY_DATA = 'paths = ["text.txt"]'
TINY_PEER = f'[device]\nuse = "cpu"\ncpu_threads = 1\n{{device}}\n[data]\n{TINY_DATA}\n'
TINY_TEXT = "A peer gives what it has, and takes its part. " * 40
