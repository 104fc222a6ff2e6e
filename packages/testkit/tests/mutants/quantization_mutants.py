"""Schemes of a small format, 4-bit groups with zero points, that are wrong in one way each."""

from dataclasses import replace

import numpy as np
from contract import Contract

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import GroupedInt, QuantizationScheme
from modulm.interfaces.support import Accepted, Rejected
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.oracles.weights import pack4
from modulm_testkit.quantization import QuantizationConformance
from modulm_testkit.samples import QuantizedSample

GROUP = 16
MODULE = "model.layers.0.mlp.up_proj"


class Zero4(QuantizationScheme):
    """`<module>.codes`, `.scales` and `.zeros`: value = scale * (code - zero)."""

    name = "zero4"

    @classmethod
    def matches(cls, checkpoint):
        declared = checkpoint.config().get("quantization_config")
        method = declared.get("quant_method") if isinstance(declared, dict) else None
        return Accepted() if method == cls.name else Rejected(f"it declares {method!r}, not {cls.name!r}")

    @classmethod
    def from_checkpoint(cls, checkpoint):
        return cls()

    def weight(self, checkpoint, module, out_features, in_features):
        if f"{module}.codes" not in set(checkpoint.tensor_names()):
            return None
        codes, scales, zeros = (checkpoint.tensor(f"{module}.{name}") for name in ("codes", "scales", "zeros"))
        if codes.shape != (out_features, in_features // 2):
            raise CheckpointError(f"{module}.codes has shape {codes.shape}, but {out_features} rows are asked for.")
        return GroupedInt(
            out_features=out_features, in_features=in_features, bits=4, group_size=GROUP, codes=codes, scales=scales,
            minimums=-scales * zeros,
        )  # fmt: skip

    def describe(self):
        return {"bits": 4}


def sample(scheme):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (6, 64))
    scales, zeros = (rng.normal(size=(6, 4)).astype(np.float32) for _ in range(2))
    head = rng.normal(size=(5, 64)).astype(np.float32)
    tensors = {f"{MODULE}.codes": pack4(codes), f"{MODULE}.scales": scales, f"{MODULE}.zeros": zeros}
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "zero4"}}
    spread = [part.astype(np.float64).repeat(GROUP, axis=1) for part in (scales, zeros)]
    return QuantizedSample(
        scheme=scheme,
        checkpoint=MemoryCheckpoint(config, {**tensors, "lm_head.weight": head}),
        weights={MODULE: spread[0] * (codes - spread[1])},
        plain={"lm_head": head},
    )


quantization = Contract("quantization", QuantizationConformance, "scheme", Zero4, wrap=sample)
mutant = quantization.mutant


@mutant("test_matches_its_own")
class MatchesNothing(Zero4):
    """It rejects every checkpoint."""

    @classmethod
    def matches(cls, checkpoint):
        return Rejected("it is not this format")


@mutant("test_rejects_others")
class BelievesTheConfig(Zero4):
    """`matches` raises where `quantization_config` is no dictionary."""

    @classmethod
    def matches(cls, checkpoint):
        declared = checkpoint.config().get("quantization_config", {})
        return Accepted() if declared.get("quant_method") == cls.name else Rejected("it declares something else")


class Wrong(Zero4):
    """Changes the right weight."""

    def weight(self, checkpoint, module, out_features, in_features):
        found = super().weight(checkpoint, module, out_features, in_features)
        return found if found is None else self.change(found)

    def change(self, weight):
        return weight


@mutant("test_weights_are_worth_what_is_stored")
class SwapsNibbles(Wrong):
    """The odd column is taken from the low nibble."""

    def change(self, weight):
        return replace(weight, codes=(weight.codes >> 4) | (weight.codes << 4))


@mutant("test_weights_are_canonical")
class KeepsFloat64(Wrong):
    """Scales are float64."""

    def change(self, weight):
        return replace(weight, scales=weight.scales.astype(np.float64))


@mutant("test_leaves_other_layers_alone")
class RoundsWhatItDoesNotQuantize(Zero4):
    """Other layers come with half of their bits."""

    def weight(self, checkpoint, module, out_features, in_features):
        from modulm.interfaces.quantization import Dense

        if module == "lm_head":
            data = checkpoint.tensor("lm_head.weight").astype(np.float16)
            return Dense(out_features=out_features, in_features=in_features, data=data)
        return super().weight(checkpoint, module, out_features, in_features)


@mutant("test_refuses_wrong_shapes")
class TakesAnyShape(Zero4):
    """Codes of another shape are taken as they are."""

    def weight(self, checkpoint, module, out_features, in_features):
        if f"{module}.codes" in set(checkpoint.tensor_names()):
            out_features, in_features = 6, 64
        return super().weight(checkpoint, module, out_features, in_features)


@mutant("test_names_what_is_missing")
class SaysSomethingIsMissing(Zero4):
    """A missing layer raises an error that does not name it."""

    def weight(self, checkpoint, module, out_features, in_features):
        if ".77." in module:
            raise CheckpointError("A tensor is missing.")
        return super().weight(checkpoint, module, out_features, in_features)


@mutant("test_gives_the_same_again")
class UsesItsScaleUp(Wrong):
    """The second weight has twice the scale."""

    asked = 0

    def change(self, weight):
        self.asked += 1
        return replace(weight, scales=self.asked * weight.scales)


@mutant("test_describes_itself")
class DescribesWithTypes(Zero4):
    """`describe` returns what JSON cannot hold."""

    def describe(self):
        return {"kind": GroupedInt}
