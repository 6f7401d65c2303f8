"""A tokenizer of bytes with ChatML's tokens, and templates for it."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from atom.models.data.tokenizer import byte_level_tokenizer

START, END, STOP = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<|im_end|>\n{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_tokenizer(folder: Path, template: str | None = CHATML) -> Path:
    """Written into that folder, as the hub's models have it. Returns its tokenizer.json."""
    folder.mkdir(exist_ok=True)
    built = Tokenizer.from_str(byte_level_tokenizer())
    built.add_special_tokens([START, END, STOP])
    built.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": STOP}
    if template is not None:
        told["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder / "tokenizer.json"
