"""What a GPTQ checkpoint declares: bits, groups, zero points; and which layers have rules of their own.

Knows keys of `quantization_config`, no tensors. Sources: AutoGPTQ's `quantize_config.json`; GPTQModel's `dynamic`.
"""

import re
from dataclasses import dataclass
from typing import Any

from modulm.interfaces.quantization_config import QuantizationConfig, is_part

BITS = (2, 3, 4, 8)
_LIBRARY_FORMATS = ("gptq", "gptq_v2")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a layer is stored.

    Attributes:
        bits: Of a code.
        group_size: Inputs that share a scale; -1: all of a row.
        reorders: Inputs are in the order of importance, so `g_idx` must say which group is whose.
    """

    bits: int
    group_size: int
    reorders: bool

    @property
    def words(self) -> str:
        """Return it as messages have it: "4 bits, groups of 128"."""
        size = f"groups of {self.group_size}" if self.group_size > 0 else "one group a row"
        return f"{self.bits} bits, {size}{', reordered' if self.reorders else ''}"


class Rules:
    """All rules of a checkpoint. Raises `CheckpointError` on a declaration that cannot be honoured."""

    def __init__(self, config: QuantizationConfig) -> None:
        self._config = config
        self.general = _rule(config, None)
        self.minus_one = _format(config) == "gptq"
        self.has_lm_head = config.flag("lm_head", False)
        self._plain = config.names("modules_to_not_convert")
        self._dynamic = [_dynamic(config, pattern, found) for pattern, found in _object(config, "dynamic").items()]

    def of(self, module: str) -> Rule | None:
        """Return a layer's rule; None for one that is to be left as it is."""
        if any(is_part(name, module) for name in self._plain):
            return None
        for pattern, rule in self._dynamic:
            if pattern.match(module):
                return rule
        return self.general

    def describe(self) -> dict[str, Any]:
        """Return what `modulm config --explain` shows."""
        return {"stored": self.general.words, "dynamic": {p.pattern: r and r.words for p, r in self._dynamic}}


def _rule(config: QuantizationConfig, general: Rule | None) -> Rule:
    bits = config.value("bits", ... if general is None else general.bits, among=BITS)
    size = config.whole("group_size", ... if general is None else general.group_size, least=-1)
    if size == 0:
        raise config.refused("group_size", "a group has at least one input; -1 stands for a whole row")
    config.flag("sym", True)  # what it means stands in the zero points
    reorders = config.flag("desc_act", general is not None and general.reorders)
    if config.flag("static_groups", False):
        reorders = False  # groups were fixed before inputs were taken by importance, so they lie together
    return Rule(bits=bits, group_size=size, reorders=reorders)


def _format(config: QuantizationConfig) -> str:
    if config.flag("is_marlin_format", False):
        raise config.refused("is_marlin_format", "that layout is a GPU kernel's own; there is 'gptq', 'gptq_v2'")
    key = "checkpoint_format" if config.keys.get("checkpoint_format") else "format"
    return str(config.value(key, "gptq", among=_LIBRARY_FORMATS))


def _dynamic(config: QuantizationConfig, pattern: str, found: Any) -> tuple[re.Pattern[str], Rule | None]:
    """Return a rule by expression: "-:expression" leaves layers alone, "+:expression" or a plain one changes keys."""
    if not isinstance(found, dict):
        raise config.refused("dynamic", f"{pattern!r} must have an object of keys")
    try:
        expression = re.compile(pattern.removeprefix("-:").removeprefix("+:"))
    except re.error as error:
        raise config.refused("dynamic", f"{pattern!r} is no regular expression: {error}") from error
    if pattern.startswith("-:"):
        return expression, None
    where = f"rule {pattern!r} of 'dynamic' in the {config.where}"
    rule = _rule(QuantizationConfig(found, where), _rule(config, None))
    return expression, rule


def _object(config: QuantizationConfig, key: str) -> dict[str, Any]:
    found = config.keys.get(key) or {}
    if not isinstance(found, dict):
        raise config.refused(key, "it must be an object")
    return found
