"""Cuts single products over ranks by the plan that Transformers has for an architecture: heads of
the attention, the inner width of the MLP, rows of the vocabulary (1909.08053).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from lydite.config import UserError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_FIELD = "sharding.tensor"


def split_products(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cuts a model, whose parameters may be on the ``meta`` device, over a mesh of one dimension,
    in place. Each rank's passes must be over the same tokens.

    Raises:
        UserError: the installed Transformers cannot, or the architecture has no plan, or one that
            does not go with so many ranks.
    """
    size = mesh.size()
    if hasattr(model, "peft_config"):
        raise UserError(f"{_FIELD}: LoRA goes with shards alone; set tensor: 1, or drop model.lora")
    plain: Any = model
    text = plain.config.get_text_config()
    heads = text.num_attention_heads
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    if heads % size or key_heads % size:
        raise UserError(
            f"{_FIELD}: {size} does not divide the model's {heads} heads and {key_heads} of keys"
        )
    plan, apply = _plan(plain, size)
    known = {name for name, _ in [*plain.named_modules(), *plain.named_parameters()]}
    fused = sorted({style for style in plan.values() if style.startswith("packed")})
    if fused:
        raise UserError(
            f"{_FIELD}: {type(model).__name__} has products that are fused ({fused[0]}), which "
            "cannot be cut and sharded at once; set tensor: 1"
        )
    # A tied weight has one name of two here, and is tied again below.
    apply(model, mesh, {name: style for name, style in plan.items() if name in known})
    plain.tie_weights()


def _plan(model: Any, size: int) -> tuple[dict[str, str], Any]:
    """The style of each module and parameter by name, and what applies it."""
    try:
        from transformers.distributed.configuration_utils import DistributedConfig
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism

        plan, _, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=size))
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"{_FIELD}: the installed Transformers cuts models in another way ({error}); it needs "
            "5.24"
        ) from error
    except ValueError as error:
        raise UserError(
            f"{_FIELD}: {type(model).__name__} has no plan for it; set tensor: 1"
        ) from error
    return plan, apply_tensor_parallelism
