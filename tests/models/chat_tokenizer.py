"""Tokenizers of bytes with special tokens, as the hub's models have them, and chat templates."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, processors

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
    """Write ChatML's tokenizer into that folder. Returns its tokenizer.json."""
    config = {"eos_token": STOP}
    if template is not None:
        config["chat_template"] = template
    return tokenizer_folder(folder, [START, END, STOP], config)


def tokenizer_folder(
    folder: Path,
    tokens: Sequence[str],
    config: Mapping[str, object] | None = None,
    around: str = "$A",
    files: Mapping[str, object] | None = None,
    plain: Sequence[str] = (),
) -> Path:
    """Write a tokenizer of bytes with more tokens, and the files beside it.

    Args:
        folder: the folder, which is created.
        tokens: special tokens, numbered from 256.
        config: content of tokenizer_config.json; None: there is none.
        around: template of the post-processor, such as "<s> $A".
        files: content of other files: text, or an object to be written as JSON.
        plain: added tokens that are not special, numbered after `tokens`.

    Returns:
        The path of the tokenizer.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    built = Tokenizer.from_str(byte_level_tokenizer())
    built.add_special_tokens([AddedToken(text, special=True) for text in tokens])
    built.add_tokens([AddedToken(text, normalized=False) for text in plain])
    if around != "$A":
        special = [(text, built.token_to_id(text)) for text in around.split() if text != "$A"]
        built.post_processor = processors.TemplateProcessing(single=around, special_tokens=special)
    built.save(str(folder / "tokenizer.json"))
    written = dict(files or {})
    if config is not None:
        written["tokenizer_config.json"] = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    for name, content in written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "tokenizer.json"


CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
TURNS = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
)
WIDE = [f"<\uff5c{name}▁of▁sentence\uff5c>" for name in ("begin", "end")]


class Family(NamedTuple):
    """A folder, and the tokens that it declares, by number."""

    tokens: list[str]
    config: Mapping[str, Any] | None = None
    around: str = "$A"
    files: Mapping[str, Any] = {}
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    answer: int | None = None
    """Token that ends an answer; None: none."""


def eos(text: str, **more: Any) -> dict[str, Any]:
    return {"eos_token": text, **more}


FAMILIES = {
    "qwen": Family(
        CHATML_TOKENS,
        eos("<|im_end|>", pad_token="<|endoftext|>", bos_token=None, chat_template=CHATML),
        files={"generation_config.json": {"eos_token_id": [258, 256]}},
        end=(256,),
        answer=258,
    ),
    "qwen base": Family(
        CHATML_TOKENS, eos("<|endoftext|>", chat_template=CHATML), end=(256,), answer=258
    ),
    "llama 3": Family(
        [*LLAMA, "<|eot_id|>"],
        eos("<|eot_id|>", bos_token="<|begin_of_text|>"),
        "<|begin_of_text|> $A",
        {
            "generation_config.json": {"eos_token_id": [257, 260]},
            "chat_template.jinja": TURNS,
        },
        (256,),
        (257,),
        260,
    ),
    "mistral": Family(
        ["<s>", "</s>"],
        eos("</s>", bos_token="<s>", chat_template=[{"name": "default", "template": INST}]),
        "<s> $A",
        begin=(256,),
        end=(257,),
        answer=257,
    ),
    "gemma": Family(
        ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
        eos("<eos>", bos_token="<bos>", chat_template=GEMMA),
        "<bos> $A",
        {"generation_config.json": {"eos_token_id": [257, 259]}},
        (256,),
        (257,),
        259,
    ),
    "t5": Family(["<pad>", "</s>"], eos("</s>"), "$A </s>", end=(257,), answer=257),
    "bert": Family(["[CLS]", "[SEP]"], {}, "[CLS] $A [SEP]", begin=(256,), end=(257,), answer=257),
    "deepseek": Family(
        WIDE,
        eos(
            {"content": WIDE[1], "__type": "AddedToken"},
            bos_token={"content": WIDE[0], "__type": "AddedToken"},
        ),
        end=(257,),
        answer=257,
    ),
    "added bos": Family(
        ["<s>", "</s>"],
        eos("</s>", bos_token="<s>", add_bos_token=True),
        begin=(256,),
        end=(257,),
        answer=257,
    ),
    "map of special tokens": Family(
        ["<a>", "<b>"], files={"special_tokens_map.json": eos("<b>")}, end=(257,), answer=257
    ),
    "declared, not in the file": Family(
        ["<a>"],
        {"eos_token": "<z>", "added_tokens_decoder": {"9": {"content": "<y>", "special": False}}},
        end=(258,),
        answer=258,
    ),
    "known name": Family(["<|endoftext|>"], end=(256,), answer=256),
    "none": Family(["<a>"]),
}
