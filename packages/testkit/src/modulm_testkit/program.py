"""Conformance of step programs (`KernelProvider.program`, `modulm.interfaces.program`): whole models in native code.

Tiny random models of core are recorded; their programs run beside the models themselves and must give the same logits.
What the provider refuses with `Unsupported` runs eagerly in the engine, and is skipped here.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from modulm.errors import Unsupported
from modulm.interfaces.attention import AttentionBackend
from modulm.interfaces.kernels import KernelProvider, PackedWeight
from modulm.interfaces.program import Embedding, Graph
from modulm.interfaces.quantization import Dense
from modulm.models.index import ARCHITECTURES
from modulm_testkit import steps
from modulm_testkit.paged import poisoned
from modulm_testkit.steps import RandomTensors, Stepper
from modulm_testkit.suite import Conformance, ask_for

CONFIG: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"attention_bias": True, "mlp_bias": True},
    "MistralForCausalLM": {"sliding_window": 9},
    "Qwen3ForCausalLM": {},
    "Gemma2ForCausalLM": {
        "sliding_window": 9, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0,
        "layer_types": ["sliding_attention", "full_attention"], "hidden_activation": "gelu_pytorch_tanh",
    },
    "MixtralForCausalLM": {"num_local_experts": 5, "num_experts_per_tok": 2},
}  # fmt: skip
"""What is run, with options of config.json beside those of `CONFIG`."""
_ERROR = 1e-3
"""Greatest difference, by the spread of logits."""


class ProgramConformance(Conformance):
    """Give `provider`: the class that the entry point of `modulm.kernels` names, or an object of it.

    Attributes:
        backend: The class of the attention backend that its programs work with.
    """

    backend: ClassVar[type[AttentionBackend] | None] = None

    @pytest.fixture(name="provider")
    def _provider(self) -> Any:
        """Return the class, or an object of it."""
        ask_for("provider", "MyKernels")

    @pytest.fixture
    def run(self, provider: Any) -> Callable[..., "_Beside"]:
        """Returns a model with its program beside it; skips what is refused."""
        made: KernelProvider = provider() if isinstance(provider, type) else provider
        if not made.runs_programs:
            pytest.skip("it runs no programs")
        if self.backend is None:
            ask_for("backend", "MyBackend, a class attribute: the attention of programs")
        made.configure(num_threads=None, precision="exact")
        backend = self.backend()

        def run(architecture: str = "LlamaForCausalLM", **options: Any) -> _Beside:
            try:
                return _Beside(made, backend, architecture, **options)
            except Unsupported as error:
                pytest.skip(f"it refuses {architecture}: {error}")

        return run

    def test_runs_something(self, provider: Any) -> None:
        """A provider that says `runs_programs` runs at least one of core's models."""
        made: KernelProvider = provider() if isinstance(provider, type) else provider
        if not made.runs_programs:
            pytest.skip("it runs no programs")
        assert self.backend is not None, "set the class attribute `backend`"
        reasons = []
        for architecture in MODELS:
            try:
                _Beside(made, self.backend(), architecture)
            except Unsupported as error:
                reasons.append(str(error))
        assert len(reasons) < len(MODELS), f"everything is refused: {reasons}"

    @pytest.mark.parametrize("architecture", MODELS)
    def test_models(self, run: Callable[..., "_Beside"], architecture: str) -> None:
        """Every model that is not refused gives the logits that it gives in torch."""
        sequence = steps.Sequence(steps.prompt(24, 9))
        model = run(architecture)
        for count in (15, 8, 1):
            model.step((sequence, count))

    def test_whole_prompts(self, run: Callable[..., "_Beside"]) -> None:
        """A prompt in one step."""
        steps.whole(run())

    def test_chunked_prompts(self, run: Callable[..., "_Beside"]) -> None:
        """A prompt in several steps, which see what earlier ones left in the cache."""
        steps.chunked(run())

    def test_batches(self, run: Callable[..., "_Beside"]) -> None:
        """Several sequences in a step."""
        steps.batched(run())

    def test_prefix_hits(self, run: Callable[..., "_Beside"]) -> None:
        """A sequence that starts behind another's tokens, on its blocks."""
        steps.prefix_hit(run())

    def test_logits_of_some_rows(self, run: Callable[..., "_Beside"]) -> None:
        """`logits` is asked for some rows of the last step: in any order, more than once, or for none."""
        model = run()
        model.step((steps.Sequence(steps.prompt(9, 3)), 9))
        wanted = model.program.logits(np.arange(9)).copy()
        for rows in ([8], [3, 0, 3], [], [7, 8]):
            found = model.program.logits(np.array(rows, np.int64))
            assert found.shape == (len(rows), CONFIG["vocab_size"])
            np.testing.assert_allclose(found, wanted[rows], rtol=1e-5, atol=1e-5)

    def test_weights_stand_side_by_side(self, run: Callable[..., "_Beside"]) -> None:
        """A weight may come in parts whose outputs stand side by side: parts may be of different kinds."""
        model = run(num_parts=2)
        model.step((steps.Sequence(steps.prompt(12, 4)), 12))

    def test_programs_live_side_by_side(self, run: Callable[..., "_Beside"]) -> None:
        """Two programs are used in turn: nothing is kept in the provider."""
        models = [run(), run(seed=1)]
        sequences = [steps.Sequence(steps.prompt(14, 5)) for _ in models]
        for count in (9, 4, 1):
            for model, sequence in zip(models, sequences, strict=True):
                model.step((sequence, count))


class _Beside(Stepper):
    """A model in torch, with the provider's program of it beside it on a cache of its own."""

    def __init__(
        self,
        provider: KernelProvider,
        backend: AttentionBackend,
        architecture: str,
        *,
        num_parts: int = 1,
        seed: int = 0,
    ) -> None:
        module, _, name = ARCHITECTURES[architecture].partition(":")
        hf = {**CONFIG, **MODELS[architecture], "architectures": [architecture]}
        super().__init__(getattr(importlib.import_module(module), name), hf, RandomTensors(seed), recorded=True)
        self.interpreter = None
        layers = {name: replace(spec, exact=True) for name, spec in self.graph.layers.items()}
        for name, spec in layers.items():
            shape = backend.kv_cache_shape(160, steps.BLOCK, spec.num_kv_heads, spec.head_size, "float32")
            self.recorded_caches[name] = poisoned(shape, "float32")
        embeddings = {op.weight for op in self.graph.forward.ops if isinstance(op, Embedding)}
        self.program = provider.program(
            Graph(**{**_fields(self.graph), "layers": layers}),
            weights={
                name: _packed(provider, weight, 1 if name in embeddings else num_parts)
                for name, weight in self.recording.weights.items()
            },
            tensors={name: tensor.numpy() for name, tensor in self.recording.tensors.items()},
            kv_caches={name: cache.numpy() for name, cache in self.recorded_caches.items()},
            groups={name: self.windows.index(spec.sliding_window) for name, spec in layers.items()},
            backends=dict.fromkeys(layers, backend),
        )

    def observe(self, tokens: torch.Tensor, batch: Any, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        """Run the program's step and compare."""
        given = {"token_ids": tokens, "positions": batch.positions, **batch.extra}
        inputs = {name: tensor.numpy() for name, tensor in given.items()}
        self.program.forward(inputs, [self.layouts[window] for window in self.windows])
        found, wanted = self.program.logits(np.arange(len(tokens))), logits.numpy()
        assert found.dtype == np.float32
        error = float(np.abs(found - wanted).max() / wanted.std())
        assert error <= _ERROR, f"logits differ by {error:.1e} of their spread, allowed {_ERROR:.0e}"


def _fields(graph: Graph) -> dict[str, Any]:
    return {name: getattr(graph, name) for name in graph.__struct_fields__}


def _packed(provider: KernelProvider, kept: Any, num_parts: int) -> list[PackedWeight]:
    """Pack a weight with the provider, in parts by rows."""
    weight = kept.weight
    count = weight.out_features // num_parts
    packed = []
    for first in range(0, weight.out_features - count + 1, count):
        last = weight.out_features if first + 2 * count > weight.out_features else first + count
        part = Dense(out_features=last - first, in_features=weight.in_features, data=weight.data[first:last])
        if not provider.supports("linear", part, "cpu"):
            raise Unsupported("it does not pack plain weights")
        packed.append(provider.pack(part, "cpu", "float32"))
        if last == weight.out_features:
            break
    return packed
