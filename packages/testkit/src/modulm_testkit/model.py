"""Conformance of model architectures (`modulm.interfaces.model`): logits against transformers', however cut into steps.

Needs transformers (modulm-testkit[models]). The checkpoint is tiny and random: its parameters are drawn so that each
of them matters. Where to look next: `steps.py`, which runs the model.
"""

import inspect
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from modulm.errors import Unsupported
from modulm_testkit import steps
from modulm_testkit.checkpoints import randomise
from modulm_testkit.oracles.logits import TOLERANCE, logits_of, worst
from modulm_testkit.steps import Stepper
from modulm_testkit.suite import Conformance, ask_for

CONFIG = {
    "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Of the tiny checkpoint, unless the author says otherwise."""


class ModelConformance(Conformance):
    """Give `model_class`: the class that the entry point of `modulm.models` names.

    Attributes:
        reference: transformers' class whose logits are right.
        config: Options of its configuration, beside those of `CONFIG`.
    """

    reference: ClassVar[str] = "LlamaForCausalLM"
    config: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(name="model_class")
    def _model_class(self) -> Any:
        """Return the class."""
        ask_for("model_class", "MyForCausalLM")

    @pytest.fixture
    def tiny(self, model_class: Any) -> "_Tiny":
        """The class with a checkpoint of its kind and transformers' own model of it."""
        pytest.importorskip("transformers", reason="modulm-testkit[models] is not installed")
        return _Tiny(model_class, self.reference, {**CONFIG, **self.config})

    def test_is_built_without_memory(self, tiny: "_Tiny") -> None:
        """Built under the meta device every parameter is there: a model of 70 billion is built before it is read."""
        model = steps.built(tiny.model_class, tiny.hf)
        heavy = [name for name, parameter in model.named_parameters() if not parameter.is_meta]
        assert not heavy, f"{heavy} have memory before weights are read"

    def test_reads_every_tensor(self, tiny: "_Tiny") -> None:
        """Every tensor of the checkpoint is asked for through the `WeightSource`: one left over is an error at load."""
        source = tiny.stepper().source
        left = sorted(set(source.tensors) - source.read)
        assert not left, f"{left} are not read"

    def test_whole_prompts(self, tiny: "_Tiny") -> None:
        """A prompt in one step gives transformers' logits."""
        tiny.check(steps.whole)

    def test_chunked_prompts(self, tiny: "_Tiny") -> None:
        """A prompt in several steps gives the same: positions go on, and what came before is in the cache."""
        tiny.check(steps.chunked)

    def test_batches(self, tiny: "_Tiny") -> None:
        """Sequences that decode beside one that is prefilled do not disturb each other."""
        tiny.check(steps.batched)

    def test_prefix_hits(self, tiny: "_Tiny") -> None:
        """A sequence that begins with another's tokens starts behind them, on its blocks."""
        tiny.check(steps.prefix_hit)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_logits_are_float32(self, tiny: "_Tiny", dtype: str) -> None:
        """`compute_logits` returns float32, whatever the model computes in: the sampler counts on it."""
        (logits, *_), *_ = steps.whole(tiny.stepper(dtype=dtype))
        assert logits.dtype == torch.float32
        assert torch.isfinite(logits).all()

    def test_takes_the_arguments_of_the_runner(self, tiny: "_Tiny") -> None:
        """`forward` takes token ids and the batch, `compute_logits` hidden states, and nothing more is needed."""
        for method, count in ((tiny.model_class.forward, 3), (tiny.model_class.compute_logits, 2)):
            inspect.signature(method).bind(*range(count))

    def test_names_its_tasks(self, tiny: "_Tiny") -> None:
        """`supported_tasks`, where it is given, is a tuple of names with "generate" in it."""
        tasks = getattr(tiny.model_class, "supported_tasks", ("generate",))
        assert isinstance(tasks, tuple | list)
        assert "generate" in tasks

    def test_recording_gives_the_same_bits(self, tiny: "_Tiny") -> None:
        """Recorded as a graph the model gives the same bits, or recording is refused with a reason.

        What breaks it: Python that looks at tensors; it is taken once, when the model is recorded.
        """
        try:
            model = tiny.stepper(recorded=True)
        except Unsupported as error:
            pytest.skip(f"it runs eagerly: {error}")
        sequence = steps.Sequence(steps.prompt(44, 3), known=44)
        for count in (36, 8):
            model.step((sequence, count))


class _Tiny:
    def __init__(self, model_class: Any, reference: str, config: dict[str, Any]) -> None:
        self.model_class = model_class
        self.theirs, self.hf, self.tensors, self.wanted = _saved(reference, json.dumps(config, sort_keys=True))

    def stepper(self, **options: Any) -> Stepper:
        """Return the model with its weights read."""
        return Stepper(self.model_class, self.hf, self.tensors, **options)

    def check(self, run: Callable[[Stepper], steps.Logits]) -> None:
        """Compare with transformers."""
        difference = worst(run(self.stepper()), self._expected)
        assert difference < TOLERANCE, f"logits differ by {difference:.1e}"

    def _expected(self, tokens: list[int]) -> torch.Tensor:
        key = tuple(tokens)
        if key not in self.wanted:
            self.wanted[key] = logits_of(self.theirs, tokens)
        return self.wanted[key]


@cache
def _saved(
    reference: str, config: str
) -> tuple[Any, dict[str, Any], dict[str, torch.Tensor], dict[tuple[int, ...], torch.Tensor]]:
    """Return transformers' model, config.json and tensors as it saves them, and room for its logits by tokens."""
    import transformers
    from safetensors.torch import load_file

    model_class = getattr(transformers, reference)
    torch.manual_seed(0)
    options = {**json.loads(config), "attn_implementation": "eager"}
    theirs = randomise(model_class(model_class.config_class(**options)))
    with tempfile.TemporaryDirectory() as name:
        theirs.save_pretrained(name)
        hf = json.loads((Path(name) / "config.json").read_text())
        return theirs, hf, load_file(Path(name) / "model.safetensors"), {}
