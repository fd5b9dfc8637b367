"""The tokenizer: byte-level BPE with the o200k-family split and M3's 61 added tokens (spec 5.1, 5.2)."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# The alternatives in the order of spec 5.1; the order is part of the meaning.
SPLIT_PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

DOCUMENT_BEGIN = "]~!b["
TURN_BEGIN = "]~b]"
TURN_END = "[e~["
UNKNOWN = "]!d~["

# The order fixes the ids: the first one follows the last ordinary token.
ADDED_TOKENS = [
    "]!p~[", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<reponame>", "<filename>",
    "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>",
    "<jupyter_code>", "<jupyter_output>", "<empty_output>", "<commit_before>", "<commit_msg>",
    "<commit_after>", TURN_BEGIN, TURN_END, UNKNOWN, "<function_call>", "<code_interpreter>",
    "]<]speech[>[", "]<]image[>[", "]<]video[>[", "]<]start of speech[>[", "]<]end of speech[>[",
    "]<]start of image[>[", "]<]end of image[>[", "]<]start of video[>[", "]<]end of video[>[",
    "]<]vision pad[>[", DOCUMENT_BEGIN, "<jupyter_error>", "<add_file>", "<delete_file>", "<rename_file>",
    "<edit_file>", "<commit_message>", "<empty_source_file>", "<repo_struct>", "<code_context>",
    "<file_content>", "<source_files>", "<pr_start>", "<review_comment>", "<filepath>", "<file_sep>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "]<]frame[>[", "]<]start of frame[>[",
    "]<]end of frame[>[", "<|content_altered_placeholder|>", "]<]minimax[>[", "<mm:think>", "</mm:think>",
]  # fmt: skip

# Markers that must survive a decode which skips special tokens.
NOT_SPECIAL = {
    "<think>", "</think>", "<tool_call>", "</tool_call>", "]<]minimax[>[", "<mm:think>", "</mm:think>",
}  # fmt: skip


def train_tokenizer(texts, vocab_size: int) -> Tokenizer:
    """Learns vocab_size - 61 ordinary tokens from `texts` and appends the 61 added ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(ADDED_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(
        [AddedToken(token, special=token not in NOT_SPECIAL, normalized=False) for token in ADDED_TOKENS]
    )
    for offset, token in enumerate(ADDED_TOKENS):
        expected = vocab_size - len(ADDED_TOKENS) + offset
        if tokenizer.token_to_id(token) != expected:
            raise ValueError(f"{token} has id {tokenizer.token_to_id(token)}, expected {expected}")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token not in NOT_SPECIAL,
        }
        for token in ADDED_TOKENS
    }
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "added_tokens_decoder": added,
            "bos_token": TURN_BEGIN,
            "clean_up_tokenization_spaces": False,
            "eos_token": TURN_END,
            "model_max_length": max_length,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": UNKNOWN,
        },
    )
    write_json(
        folder / "generation_config.json",
        {
            "bos_token_id": tokenizer.token_to_id(TURN_BEGIN),
            "do_sample": True,
            "eos_token_id": tokenizer.token_to_id(TURN_END),
            "temperature": 1.0,
            "top_k": 40,
            "top_p": 0.95,
        },
    )


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
