"""A load without memory: every name, shape and type that a model asks for is checked, and a format's scales are read.

Runs before the load itself, so that a checkpoint is refused before a byte is allocated for it, and before minutes of
packing. Knows no format: schemes answer `rule`.
"""

from typing import TYPE_CHECKING, Any

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import expect
from modulm.interfaces.recipe import Recipe
from modulm.worker.load import TensorSource

if TYPE_CHECKING:
    import torch


class Rehearsal(TensorSource):
    """Stands for the source: tensors have no memory, packed weights are None."""

    @classmethod
    def of(cls, source: TensorSource) -> "Rehearsal":
        """Return one of the same checkpoint."""
        return cls(source._checkpoint, scheme=source._scheme, kernels=(), device=source._device, dtype=source._dtype)

    def tensor(self, name: str, shape: tuple[int, ...]) -> "torch.Tensor":
        """See `WeightSource`."""
        import torch

        self._look(name, shape)
        return torch.empty(shape, dtype=getattr(torch, self._dtype), device="meta")

    def packed_slice(
        self, name: str, shape: tuple[int, int, int], index: int, *, transposed: bool = False, in_turn: bool = False
    ) -> Any:
        """See `WeightSource`."""
        self._look_at_slice(name, shape, index, transposed)

    def pack(self, recipe: Recipe) -> Any:
        """Check a weight. Raises `CheckpointError` where parts of a fused layer are stored by unlike rules."""
        modules, sizes, width = recipe.modules, recipe.out_features, recipe.in_features
        if recipe.slice is not None:
            return self._look_at_slice(modules[0], (None, sizes[0], width), recipe.slice, recipe.transposed)
        rules = {module: self._rule(module, size, width) for module, size in zip(modules, sizes, strict=True)}
        if len(set(rules.values())) > 1:
            stored = "; ".join(f"{module}: {rule or 'not quantized'}" for module, rule in rules.items())
            raise CheckpointError(
                f"Layers that the model fuses are stored by unlike rules in {self._checkpoint.path}: {stored}. "
                "Quantize all of them alike, or none."
            )
        return None

    def _rule(self, module: str, out_features: int, in_features: int) -> str | None:
        rule = None if self._scheme is None else self._scheme.rule(self._checkpoint, module, out_features, in_features)
        if rule is None:
            self._look(f"{module}.weight", (out_features, in_features))
        else:
            self._mark_module(module)
        self._checkpoint.release()
        return rule

    def _look_at_slice(self, name: str, shape: tuple[int | None, int, int], index: int, transposed: bool) -> None:
        if self._stack_tensors(name):
            self._slice(Recipe((name,), (shape[1],), shape[2], "linear", slice=index), shape[0])
            self._checkpoint.release()
        else:
            self._look(name, (shape[0], shape[2], shape[1]) if transposed else shape)

    def _look(self, name: str, shape: tuple[int | None, ...]) -> None:
        info = expect(self._checkpoint, name, shape, who="the model")
        self._need_floats(name, info.dtype)
        self._mark({name})
