# SPDX-License-Identifier: MIT

"""FLOP that a step of LoRA training needs: 4 P + 6 P_lora + 3.5 attention
forward per token.

P is the number of weights in a token's matmuls: with the head, without the
embedding, and of experts only those chosen. A frozen weight has a forward
matmul and an input gradient, and no gradient of its own, so 2 + 2 FLOP each.
LoRA's weights have all three. Recomputed work counts once. Attention is causal:
a query sees half of a row on average. The backward is 2.5 times the forward.
"""

from tensors import count, head_size, is_adapted, tensor_shapes


def chosen_share(name, config):
    """Returns the fraction of the tokens that a linear processes."""
    if ".experts." not in name:
        return 1
    return config["num_experts_per_tok"] / config["num_experts"]


def linear_work(config, rank):
    """Returns FLOP per token, without the head and attention."""
    flop = 0
    for name, size in tensor_shapes(config).items():
        if name.endswith(("proj.weight", "mlp.gate.weight")):
            flop += 4 * chosen_share(name, config) * count(size)
        if is_adapted(name, config):
            flop += 6 * rank * sum(size)
    return flop


def head_work(config):
    """Returns FLOP per token that has a label."""
    return 4 * config["vocab_size"] * config["hidden_size"]


def attention_work(config, length):
    """Returns FLOP per token of a row of `length`."""
    return 3.5 * (2 * config["num_attention_heads"] * head_size(config)
                  * length * config["num_hidden_layers"])


def work_per_token(config, rank, length):
    """Returns FLOP per token, all labelled, in rows of `length`."""
    return (linear_work(config, rank) + head_work(config)
            + attention_work(config, length))


def work_per_label(config, rank, rows):
    """Returns FLOP per labelled token of `rows`: (tokens, labelled tokens)."""
    flop = sum(tokens * (linear_work(config, rank)
                         + attention_work(config, tokens))
               + labelled * head_work(config) for tokens, labelled in rows)
    return flop / sum(labelled for _, labelled in rows)
