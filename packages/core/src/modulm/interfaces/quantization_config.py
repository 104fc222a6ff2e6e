"""What a checkpoint declares of its quantization: keys of `quantization_config`, and which layers its lists mean.

Formats (`interfaces/quantization.py`) read their declaration through this, so that every refusal names key, value and
file. Detection goes by `quant_method`, never by keys or shapes. Knows no format and no tensor.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modulm.errors import CheckpointError
from modulm.interfaces.support import Accepted, Rejected, Support

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

_KEYS = ("quantization_config", "compression_config")
_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""Files that stand for the key in folders of older libraries -> the method of one that names none."""
FUSED: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Layers that some files and some lists have as one -> the parts that others have."""


class QuantizationConfig:
    """A declaration's keys. Every method raises `CheckpointError` on a value that is not what it returns.

    Attributes:
        keys: All of them, as they are written.
        where: For messages: "quantization_config of /models/x".
    """

    def __init__(self, keys: dict[str, Any], where: str) -> None:
        self.keys = keys
        self.where = where

    @property
    def method(self) -> str | None:
        """`quant_method`; None where nothing is declared, or where it is no string."""
        method = self.keys.get("quant_method")
        return method if isinstance(method, str) else None

    def value(self, key: str, default: Any, *, among: Iterable[Any]) -> Any:
        """Return one of the values `among`; `default` where the key is missing or null, unless that is `...`."""
        found = self.keys.get(key)
        found = default if found is None else found
        allowed = list(among)
        if not any(type(found) is type(one) and found == one for one in allowed):
            raise self.refused(key, f"there is {', '.join(map(repr, allowed))}")
        return found

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        return bool(self.value(key, default, among=(True, False)))

    def whole(self, key: str, default: Any, *, least: int) -> int:
        """Return a whole number."""
        found = self.keys.get(key, default)
        if type(found) is not int or found < least:
            raise self.refused(key, f"it must be a whole number of at least {least}")
        return found

    def names(self, key: str) -> list[str]:
        """Return a list of strings: empty where the key is missing or null."""
        found = self.keys.get(key) or []
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise self.refused(key, "it must be a list of names of layers")
        return found

    def refused(self, key: str, why: str) -> CheckpointError:
        """Return the error about a key: `why` is a clause such as "it must be a whole number"."""
        found = f"{key}={self.keys[key]!r} in" if key in self.keys else f"{key!r} is missing in"
        return CheckpointError(f"{found} the {self.where} is refused: {why}.")


def quantization_config(checkpoint: "Checkpoint") -> QuantizationConfig:
    """Return what a checkpoint declares: in config.json, there in `text_config`, or in a file of its own.

    Without keys where it declares nothing. Raises `CheckpointError` on a file that cannot be read.
    """
    config = checkpoint.config()
    text = config.get("text_config")
    for level in (text, config) if isinstance(text, dict) else (config,):
        for key in _KEYS:
            if level.get(key):
                found = level[key]
                if not isinstance(found, dict):
                    raise CheckpointError(f"{key}={found!r} of {checkpoint.path} is refused: it is no object.")
                return QuantizationConfig(found, f"{key} of {checkpoint.path}")
    for name, method in _FILES.items():
        if (file := checkpoint.path / name).is_file():
            return QuantizationConfig({"quant_method": method, **_object(file)}, f"file {file}")
    return QuantizationConfig({}, f"config of {checkpoint.path}, without quantization_config,")


def declares(checkpoint: "Checkpoint", *methods: str) -> Support:
    """Say whether a checkpoint's `quant_method` is one of a scheme's names: what `matches` answers. Never raises."""
    try:
        config = quantization_config(checkpoint)
    except CheckpointError as error:
        return Rejected(str(error))
    if config.method in methods:
        return Accepted()
    return Rejected(f"it is not in this format: the {config.where} has quant_method {config.method!r}")


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} holds no object.")
    return found


def is_part(name: str, module: str) -> bool:
    """Say whether a list's `name` means `module`: by whole words between dots, anywhere in it.

    "mlp.gate" means "model.layers.0.mlp.gate", not "….mlp.gate_proj"; "model.layers.0" all of that layer.
    """
    return f".{name.strip('.')}." in f".{module}."


def follows(module: str, means: Callable[[str], bool], what: str) -> bool:
    """Say whether a rule means a layer: by its own name, by that of the layer it is fused into, or by its parts'.

    Args:
        module: The layer's name: "model.layers.0.self_attn.q_proj", or a fused one: "….qkv_proj".
        means: Whether the rule's names mean a name.
        what: The rule, for messages: "modules_to_not_convert".

    Raises:
        CheckpointError: The rule means some parts of a fused layer and others not.
    """
    if means(module):
        return True
    parent, _, last = module.rpartition(".")
    prefix = f"{parent}." if parent else ""
    if any(last in parts and means(f"{prefix}{fused}") for fused, parts in FUSED.items()):
        return True
    answers = {part: means(f"{prefix}{part}") for part in FUSED.get(last, ())}
    if len(set(answers.values())) > 1:
        meant = [part for part, answer in answers.items() if answer]
        raise CheckpointError(
            f"{what} means {', '.join(meant)} of layer {module!r}, but not "
            f"{', '.join(part for part in answers if part not in meant)}. They are stored as one, so one rule must "
            "hold for all: name all of them, or none."
        )
    return any(answers.values())
