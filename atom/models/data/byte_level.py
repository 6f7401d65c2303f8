"""Our tokenizer of bytes as a tokenizer.json: 256 tokens, each byte its own number, no merges."""

import json


def byte_level_tokenizer() -> str:
    """The text of a tokenizer.json that gives the same numbers as `ByteTokenizer`."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    content: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": False},
        "post_processor": None,
        "decoder": {**level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {sign: byte for byte, sign in enumerate(_signs())},
            "merges": [],
        },
    }
    return json.dumps(content, indent=1) + "\n"


def _signs() -> list[str]:
    """The sign that byte-level tokenizers write for each byte: itself if it is a visible one of
    Latin-1, else the next one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]
