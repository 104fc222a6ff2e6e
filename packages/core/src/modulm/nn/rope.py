"""What config.json says of rotary position embeddings, old style and new, as one `Rope`.

transformers 5 writes `rope_parameters` (one dict, or one per layer type); before, there were `rope_theta`,
`rope_scaling`, `partial_rotary_factor` and `original_max_position_embeddings` side by side. The mathematics is in
`rope_frequencies.py`, the layer in `rotary.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modulm.errors import CheckpointError

_PRETRAINED_LENGTH = "original_max_position_embeddings"


@dataclass(frozen=True, kw_only=True)
class Rope:
    """One kind of rotary embedding.

    Attributes:
        kind: "default", "linear", "dynamic", "yarn", "llama3" or "longrope".
        dim: Leading dimensions of a head that are rotated; even.
        theta: Base of the wavelengths.
        max_position_embeddings: The length config.json states.
        parameters: What is particular to the kind, under config.json's keys.
    """

    kind: str
    dim: int
    theta: float
    max_position_embeddings: int
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_config(
        cls, hf: Mapping[str, Any], head_dim: int, *, layer_type: str | None = None, default_theta: float = 10_000.0
    ) -> "Rope":
        """Read a model's config.json.

        Args:
            hf: config.json's contents.
            head_dim: Width of an attention head.
            layer_type: Which entry of a `rope_parameters` that has one per layer type; None where there is only one.
            default_theta: Base where the file gives none.

        Raises:
            CheckpointError: A value is missing or makes no sense.
        """
        values = _values(hf, layer_type)
        kind = str(values.pop("rope_type", None) or values.pop("type", None) or "default")
        values.pop("type", None)
        if kind == "su" or (kind == "yarn" and "short_factor" in values):  # what early Phi-3 checkpoints call it
            kind = "longrope"
        theta = _first(values.pop("rope_theta", None), hf.get("rope_theta"), default_theta)
        share = values.pop("partial_rotary_factor", None) or hf.get("partial_rotary_factor") or 1.0
        longest = hf.get("max_position_embeddings")
        if kind in ("yarn", "llama3", "longrope"):
            values[_PRETRAINED_LENGTH] = hf.get(_PRETRAINED_LENGTH) or values.get(_PRETRAINED_LENGTH) or longest
        if theta <= 0:
            raise CheckpointError(f"rope_theta={theta!r} of the model's config is refused: it must be over 0.")
        dim = int(head_dim * share)
        if dim % 2:
            raise CheckpointError(
                f"partial_rotary_factor={share!r} is refused: it rotates {dim} of {head_dim} dimensions, an odd number."
            )
        return cls(
            kind=kind,
            dim=dim,
            theta=float(theta),
            max_position_embeddings=int(longest or 0),
            parameters=values,
        )

    def need(self, key: str) -> Any:
        """Return a parameter of this kind. Raises `CheckpointError` naming it when it is missing."""
        value = self.parameters.get(key)
        if value is None:
            raise CheckpointError(f"rope_type {self.kind!r} needs {key!r}, and the model's rope_parameters lack it.")
        return value

    @property
    def pretrained_length(self) -> int:
        """Tokens the model was first trained on, before its context was extended."""
        return int(self.need(_PRETRAINED_LENGTH))

    @property
    def extension(self) -> float:
        """`factor`, or the ratio of stated to pretrained length where the file leaves it out."""
        return float(self.parameters.get("factor") or self.max_position_embeddings / self.pretrained_length)


def _values(hf: Mapping[str, Any], layer_type: str | None) -> dict[str, Any]:
    found = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise CheckpointError(f"rope_parameters={found!r} of the model's config is refused: it must be an object.")
    nested = [key for key, value in found.items() if key.endswith("_attention") and isinstance(value, dict | None)]
    if not nested:
        return _checked(found)
    if layer_type not in found:
        raise CheckpointError(
            f"rope_parameters has an entry for each of {', '.join(nested)}, but none for layers of type {layer_type!r}."
        )
    return _checked(found[layer_type] or {})


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return a copy. Everything but the type's name is a number, a switch or a list of numbers."""
    for key, value in values.items():
        if key not in ("rope_type", "type") and isinstance(value, str | dict):
            raise CheckpointError(f"{key}={value!r} of the model's rope_parameters is refused: it must be a number.")
    return dict(values)


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
