"""Write a configuration of Qwen3-30B-A3B's shape (public facts) with a filler tokenizer.

usage: python scripts/gpu/make_model.py FOLDER

For servers with ``--load-format dummy``: 61 GB of BF16 weights, no download. The tokenizer is byte
level with one filler token for each further id, so every id is a legal prompt token.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VOCABULARY = 151936
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCABULARY,
}


def main() -> None:
    """Write the three files of the model folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = Path(sys.argv[1])
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else CONFIG["num_hidden_layers"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
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
        "model_max_length": 40960,
        "eos_token": "!",
        "bos_token": "!",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    main()
