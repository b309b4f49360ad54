"""How much arithmetic a token takes: to say what a stage cost, and to compare at equal cost."""

from __future__ import annotations

from torch import nn

BACKWARD = 2.0
"""A backward pass over its forward pass."""


def kept_per_token(model: nn.Module) -> int:
    """About how many bytes a token's activations take from its forward pass to its backward pass: a
    quarter more than the results of all products but the head's, as measured in layers of the Llama
    kind (SmolLM2-135M: 766 kB in float32, of which this makes 777). Where they are made again
    (gradient checkpointing), one for each layer.
    """
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        text = model.config.get_text_config()  # type: ignore[union-attr, operator]
        return int(text.num_hidden_layers * text.hidden_size) * 4
    head = getattr(model, "get_output_embeddings", lambda: None)()
    products = (m for m in model.modules() if isinstance(m, nn.Linear) and m is not head)
    return sum(m.out_features * m.weight.element_size() for m in products) * 5 // 4


def flops_per_token(model: nn.Module) -> float:
    """Floating-point operations of one token's forward pass: two for each weight that it is
    multiplied with (2001.08361, §2.1).

    All parameters but an input embedding, which is looked up, count; tied to the head it counts as
    the head. Attention scores are left out: their share is small while sequences are short beside
    ``6·d`` tokens.
    """
    every = sum(parameter.numel() for parameter in model.parameters())
    embedding, head = (
        getattr(layer() if callable(layer) else None, "weight", None)
        for layer in (
            getattr(model, "get_input_embeddings", None),
            getattr(model, "get_output_embeddings", None),
        )
    )
    looked_up = 0 if embedding is None or embedding is head else embedding.numel()
    return 2.0 * (every - looked_up)
