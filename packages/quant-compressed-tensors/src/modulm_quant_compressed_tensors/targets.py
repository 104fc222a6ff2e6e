"""Which layers a declaration means: `config_groups` with their targets, and `ignore`.

A target is a layer's name, a regular expression after "re:", or a class of torch's; a name goes before an expression,
an expression before a class. Knows no tensors. Source: `match_targets` of compressed-tensors.
"""

import re
from typing import TYPE_CHECKING

from modulm.errors import CheckpointError
from modulm.interfaces.quantization_config import FUSED, QuantizationConfig, follows, quantization_config
from modulm_quant_compressed_tensors.arguments import Arguments, read_arguments

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_EMBEDDINGS = ("embed_tokens", "word_embeddings", "wte", "embed_in")


class Targets:
    """What is declared, layer by layer. Raises `CheckpointError` naming the key that cannot be honoured."""

    def __init__(self, checkpoint: "Checkpoint") -> None:
        self.config = quantization_config(checkpoint)
        _refuse_what_is_not_read(self.config)
        self._ignored = _checked(self.config, "ignore")
        self._groups: list[tuple[str, Arguments]] = []
        groups = self.config.keys.get("config_groups")
        if not isinstance(groups, dict):
            raise self.config.refused("config_groups", "it must be an object that says how layers are quantized")
        form = self.config.keys.get("format")
        for name, keys in groups.items():
            if not isinstance(keys, dict):
                raise self.config.refused("config_groups", f"{name!r} must be an object with targets and weights")
            group = QuantizationConfig(keys, f"group {name!r} in the {self.config.where}")
            targets = _checked(group, "targets")
            if all(target.endswith("Attention") for target in targets) or keys.get("weights") is None:
                continue  # of keys and values or activations, not of weights
            arguments = read_arguments(group, form if isinstance(form, str) else None)
            self._groups += [(target, arguments) for target in targets]

    def of(self, module: str) -> Arguments | None:
        """Return how a layer is stored, as declared; None: in plain numbers.

        Raises `CheckpointError` where parts of a layer that is stored as one are meant by unlike rules.
        """
        if follows(module, self._is_ignored, "'ignore'"):
            return None
        found = self._named(module)
        if found is None:
            parent = module.rpartition(".")[0]
            prefix = f"{parent}." if parent else ""
            parts = {part: self._named(f"{prefix}{part}") for part in FUSED.get(module[len(prefix) :], ())}
            if len(set(parts.values())) > 1:
                told = "; ".join(f"{part}: {arguments or 'not named'}" for part, arguments in parts.items())
                raise CheckpointError(
                    f"config_groups in the {self.config.where} mean parts of layer {module!r} by unlike rules "
                    f"({told}). They are stored as one, so that one rule must hold for all."
                )
            found = next(iter(parts.values()), None)
        return found or self._of_class("Embedding" if module.rpartition(".")[2] in _EMBEDDINGS else "Linear")

    def all(self) -> list[Arguments]:
        """Return every group's."""
        return list(dict.fromkeys(arguments for _, arguments in self._groups))

    def _is_ignored(self, name: str) -> bool:
        return any(_means(target, name) for target in self._ignored)

    def _named(self, module: str) -> Arguments | None:
        exact = (arguments for target, arguments in self._groups if target == module)
        matched = (arguments for target, arguments in self._groups if target != module and _means(target, module))
        return next(exact, None) or next(matched, None)

    def _of_class(self, name: str) -> Arguments | None:
        return next((arguments for target, arguments in self._groups if target == name), None)


def _means(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), module) is not None
    return target == module


def _checked(config: QuantizationConfig, key: str) -> list[str]:
    """Return a list of targets whose expressions can be understood."""
    names = config.names(key)
    for name in names:
        try:
            re.compile(name.removeprefix("re:") if name.startswith("re:") else "")
        except re.error as error:
            raise config.refused(key, f"{name!r} is no regular expression: {error}") from error
    return names


def _refuse_what_is_not_read(config: QuantizationConfig) -> None:
    if config.keys.get("transform_config"):
        raise config.refused("transform_config", "weights that are rotated cannot be read")
    sparsity = config.keys.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format") not in (None, "dense"):
        raise config.refused("sparsity_config", "weights with zeros left out cannot be read; there is 'dense'")
    status = config.keys.get("quantization_status") or "compressed"
    if status != "compressed":
        raise config.refused("quantization_status", "only what is 'compressed' is stored in few bits")
