"""Write a tiny dense Qwen3 configuration and tokenizer, for servers with dummy weights on a CPU.

usage: python scripts/tiny_model.py FOLDER

The tokenizer is byte level with single filler tokens behind the 256 bytes, so that every id up to
the vocabulary's size is a legal prompt token.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VOCABULARY = 4096
LAYERS = 4


def write_config(folder: Path) -> None:
    """Write ``config.json`` of a Qwen3 with 4 layers, hidden size 64 and 4096 tokens."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "max_position_embeddings": 4096,
        "num_attention_heads": 4,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def write_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(alphabet)}
    for index in range(len(vocabulary), VOCABULARY):
        vocabulary[f"t{index}x"] = index
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 4096,
        "eos_token": "!",
        "bos_token": "!",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def main() -> None:
    """Write the model folder named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder)
    write_tokenizer(folder)


if __name__ == "__main__":
    main()
