"""`LoRARequest`: an adapter by name and place."""

from dataclasses import dataclass


@dataclass(eq=False)
class LoRARequest:
    """An adapter; two of one name are the same. `lora_int_id` counts from 1; modulm does not read it."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"id must be > 0, got {self.lora_int_id}")

    @property
    def adapter_id(self) -> int:
        """The number."""
        return self.lora_int_id

    @property
    def name(self) -> str:
        """The name."""
        return self.lora_name

    @property
    def path(self) -> str:
        """The place."""
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)
