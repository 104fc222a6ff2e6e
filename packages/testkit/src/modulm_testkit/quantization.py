"""Conformance of quantization schemes (`modulm.interfaces.quantization`): what a checkpoint's weights are worth.

The author says what they are worth, by the format's own library or plain numpy; `oracles/weights.py` says what the
scheme's `Weight` is worth. No kernels and no torch: a scheme knows neither.
"""

import json
from typing import Any

import numpy as np
import pytest

from modulm.errors import CheckpointError
from modulm.interfaces.quantization import QuantizationScheme, Weight
from modulm.interfaces.support import Accepted, Rejected
from modulm_testkit.fakes import MemoryCheckpoint
from modulm_testkit.oracles.weights import dequantised, faults
from modulm_testkit.samples import QuantizedSample
from modulm_testkit.suite import Conformance, ask_for

_MISSING = "model.layers.77.mlp.up_proj"


class QuantizationConformance(Conformance):
    """Give `scheme`: a `QuantizedSample`, the class with a checkpoint and what its weights are worth."""

    @pytest.fixture(name="scheme")
    def _scheme(self) -> QuantizedSample:
        """Return the sample."""
        ask_for("scheme", "QuantizedSample(scheme=MyScheme, checkpoint=..., weights={...})")

    def test_matches_its_own(self, scheme: QuantizedSample) -> None:
        """`matches` accepts a checkpoint in this format by what it declares."""
        answer = scheme.scheme.matches(scheme.checkpoint)
        assert isinstance(answer, Accepted), f"it says {answer!r} of its own checkpoint"

    @pytest.mark.parametrize("declared", ["nothing", None, 7, [], {}, {"quant_method": 3}, {"quant_method": "other"}])
    def test_rejects_others(self, scheme: QuantizedSample, declared: Any) -> None:
        """`matches` rejects checkpoints of other formats, or of none, with a reason; whatever they declare.

        The engine asks every installed scheme about every checkpoint. What breaks it: a `quantization_config` that is
        no dictionary.
        """
        config = {"architectures": ["LlamaForCausalLM"]}
        if declared != "nothing":
            config["quantization_config"] = declared
        answer = scheme.scheme.matches(MemoryCheckpoint(config, {"lm_head.weight": np.zeros((2, 2), np.float32)}))
        assert isinstance(answer, Rejected), f"it says {answer!r} of {declared!r}"
        assert answer.reason, "it rejects without a reason"

    def test_weights_are_worth_what_is_stored(self, scheme: QuantizedSample) -> None:
        """A layer's `Weight` has exactly the values that the format gives to its codes, scales and offsets.

        What breaks it: the order of nibbles, a zero point that is stored minus one, groups along the other axis.
        """
        for module, wanted in scheme.weights.items():
            weight = _weight(made(scheme), scheme, module)
            np.testing.assert_allclose(dequantised(weight), wanted, rtol=1e-6, atol=1e-6, err_msg=module)

    def test_weights_are_canonical(self, scheme: QuantizedSample) -> None:
        """A `Weight` is of a canonical kind, and its arrays have the shapes and types that the kind asks for.

        Kernels take these on trust: an array of another type is read as something else.
        """
        for module, wanted in scheme.weights.items():
            weight = _weight(made(scheme), scheme, module)
            assert (weight.out_features, weight.in_features) == wanted.shape
            assert not faults(weight), f"{module}: {'; '.join(faults(weight))}"

    def test_leaves_other_layers_alone(self, scheme: QuantizedSample) -> None:
        """A layer that the format does not quantize is None, or has its numbers as they are stored."""
        if not scheme.plain:
            pytest.skip("the sample names no layer that is left as it is")
        for module, wanted in scheme.plain.items():
            weight = made(scheme).weight(scheme.checkpoint, module, *wanted.shape)
            if weight is not None:
                np.testing.assert_allclose(dequantised(weight), wanted, rtol=1e-6, atol=1e-6, err_msg=module)

    def test_refuses_wrong_shapes(self, scheme: QuantizedSample) -> None:
        """A layer of another shape than the model's raises `CheckpointError` that names it."""
        module, wanted = next(iter(scheme.weights.items()))
        rows, columns = wanted.shape
        for shape in ((rows + 1, columns), (rows, 2 * columns)):
            with pytest.raises(CheckpointError, match=_last(module)):
                made(scheme).weight(scheme.checkpoint, module, *shape)

    def test_names_what_is_missing(self, scheme: QuantizedSample) -> None:
        """A layer that is not in the checkpoint is None, so that the loader names it, or `CheckpointError` does."""
        try:
            found = made(scheme).weight(scheme.checkpoint, _MISSING, 8, 32)
        except CheckpointError as error:
            found, said = None, str(error)
        else:
            said = _MISSING
        assert found is None, f"there is no {_MISSING}, and it is {found!r}"
        assert "up_proj" in said, f"{said!r} does not name what is missing"

    def test_gives_the_same_again(self, scheme: QuantizedSample) -> None:
        """A weight asked for twice is the same: nothing is changed in the file's arrays, and nothing used up."""
        module = next(iter(scheme.weights))
        one = made(scheme)
        first, second = (dequantised(_weight(one, scheme, module)) for _ in range(2))
        np.testing.assert_array_equal(first, second)

    def test_describes_itself(self, scheme: QuantizedSample) -> None:
        """`describe` returns a dictionary that JSON can hold, for `modulm config --explain`."""
        described = made(scheme).describe()
        assert isinstance(described, dict)
        json.dumps(described)


def made(sample: QuantizedSample) -> QuantizationScheme:
    """Return the scheme of the sample's checkpoint."""
    return sample.scheme.from_checkpoint(sample.checkpoint)


def _weight(one: QuantizationScheme, sample: QuantizedSample, module: str) -> Weight:
    weight = one.weight(sample.checkpoint, module, *sample.weights[module].shape)
    assert weight is not None, f"{module}: None, which says that it is not quantized"
    return weight


def _last(module: str) -> str:
    """Return the word of a layer's name that every format keeps in some form: "mlp.up_proj" may be "ffn_up"."""
    return module.split(".")[-1].partition("_")[0]
