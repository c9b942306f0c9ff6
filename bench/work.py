# SPDX-License-Identifier: MIT

"""Counts the FLOP that a step of LoRA training needs: per token 4 P + 6 P_lora
+ 3.5 times the FLOP of attention's forward.

P is the number of weights in a token's matmuls, including the LM head and the
chosen experts, but not the embedding. A frozen weight has a
forward matmul and an input gradient, but no weight gradient, so 2 + 2 FLOP. A
weight of LoRA has all three. Recomputed work counts once. Attention is causal,
so that a query sees half of a row on average. Its backward needs 2.5 times the
FLOP of its forward.
"""

from tensors import count, head_size, is_adapted, tensor_shapes


def chosen_share(name, config):
    """Returns the fraction of the tokens that a linear processes."""
    if ".experts." not in name:
        return 1
    return config["num_experts_per_tok"] / config["num_experts"]


def linear_work(config, rank):
    """Returns FLOP per token, without the LM head and attention."""
    flop = 0
    for name, size in tensor_shapes(config).items():
        if name.endswith(("proj.weight", "mlp.gate.weight")):
            flop += 4 * chosen_share(name, config) * count(size)
        if is_adapted(name, config):
            flop += 6 * rank * sum(size)
    return flop


def head_work(config):
    """Returns the LM head's FLOP per labelled token."""
    return 4 * config["vocab_size"] * config["hidden_size"]


def attention_work(config, length):
    """Returns attention's FLOP per token of a row of `length` tokens."""
    return 3.5 * (2 * config["num_attention_heads"] * head_size(config)
                  * length * config["num_hidden_layers"])


def work_per_token(config, rank, length):
    """Returns FLOP per token, in rows of `length` labelled tokens."""
    return (linear_work(config, rank) + head_work(config)
            + attention_work(config, length))


def work_per_label(config, rank, rows):
    """Returns FLOP per labelled token. `rows` has (tokens, labelled tokens) of
    each row."""
    flop = sum(tokens * (linear_work(config, rank)
                         + attention_work(config, tokens))
               + labelled * head_work(config) for tokens, labelled in rows)
    return flop / sum(labelled for _, labelled in rows)
