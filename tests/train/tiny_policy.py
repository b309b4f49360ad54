"""The smallest Llama that the learner's tests train."""

from lydite.model.loading import ModelConfig

CHARACTERS = [*"0123456789+= abcdefghijklmnopqrstuvwxyz?."]


def tiny_model(**changes):
    shape = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    return ModelConfig(path="init:llama", init=shape, vocabulary=CHARACTERS, context=128, **changes)
