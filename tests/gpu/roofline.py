"""Seconds that work takes on an H200 if nothing but the bytes that must be read, or the products,
took time: what speeds are shares of."""

READ_BYTES = 4.54e12    # a second of its memory, by plain reads
PRODUCT_FLOPS = 850e12  # a second of large bf16 products


def _heads(config):
    heads = config["num_attention_heads"]
    return (heads, config["num_key_value_heads"],
            config.get("head_dim") or config["hidden_size"] // heads)


def _layers(config):
    """Numbers in the matrices of all layers."""
    heads, kv, head_dim = _heads(config)
    dim = config["hidden_size"]
    return config["num_hidden_layers"] * (
        2 * dim * (heads + kv) * head_dim + 3 * dim * config["intermediate_size"])


def weights(config):
    """Once all weights that a step reads: the layers', the LM head's."""
    return 2 * (_layers(config) + config["vocab_size"] * config["hidden_size"]) / READ_BYTES


def keys(config, n):
    """Keys and values of so many tokens."""
    _, kv, head_dim = _heads(config)
    return 2 * 2 * config["num_hidden_layers"] * kv * head_dim * n / READ_BYTES


def decode(config, n_seqs, context):
    """One step."""
    return weights(config) + keys(config, n_seqs * context)


def products(config, n):
    """A prompt of n tokens, each of which attends to those before it."""
    heads, _, head_dim = _heads(config)
    attention = 2.0 * config["num_hidden_layers"] * heads * head_dim * n * n
    return (2.0 * _layers(config) * n + attention) / PRODUCT_FLOPS


def prompt(config, n):
    return max(products(config, n), weights(config))
