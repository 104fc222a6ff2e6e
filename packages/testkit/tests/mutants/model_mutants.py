"""Models that are wrong in one way each, made of core's Llama."""

import torch
from contract import Contract
from torch import nn

from modulm.models.llama import LlamaForCausalLM
from modulm.models.qwen2 import Qwen2ForCausalLM
from modulm_testkit.model import ModelConformance

CONFIG = {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 2}
model = Contract("model", ModelConformance, "model_class", LlamaForCausalLM, config=CONFIG)
model.also("qwen2", Qwen2ForCausalLM, reference="Qwen2ForCausalLM", config={"num_hidden_layers": 2})
mutant = model.mutant


class Spoiled(LlamaForCausalLM):
    """Its hidden states are in reverse order where `spoils(positions)`."""

    def forward(self, token_ids, batch):
        hidden = super().forward(token_ids, batch)
        if not isinstance(hidden, torch.Tensor):  # it is being recorded
            return hidden
        return hidden.flip(0) if self.spoils(batch.positions.tolist()) else hidden

    def spoils(self, positions):
        return False


def is_one(positions):
    return positions == list(range(positions[0], positions[0] + len(positions)))


@mutant("test_is_built_without_memory")
class TakesMemoryAtOnce(LlamaForCausalLM):
    """A parameter is made on the CPU, whatever device is asked for."""

    def __init__(self, config):
        super().__init__(config)
        self.spare = nn.Parameter(torch.zeros(3, device="cpu"), requires_grad=False)


@mutant("test_reads_every_tensor")
class ReadsPastTheSource(LlamaForCausalLM):
    """The last norm is taken from the tensors themselves, so that the source does not know."""

    def __init__(self, config):
        super().__init__(config)
        own = type(self.model.norm)

        class Norm(own):
            def load(self, name, source):
                before = set(source.read)
                super().load(name, source)
                source.read.intersection_update(before)

        self.model.norm.__class__ = Norm


@mutant("test_whole_prompts")
class ReversesPrompts(Spoiled):
    """A prompt of 37 tokens in one step gives its results in reverse order."""

    def spoils(self, positions):
        return len(positions) == 37


@mutant("test_chunked_prompts")
class ReversesChunks(Spoiled):
    """Chunks that begin inside a block give their results in reverse order."""

    def spoils(self, positions):
        return is_one(positions) and positions[0] % 4 > 0


@mutant("test_batches")
class ReversesBatches(Spoiled):
    """Steps of several sequences give their results in reverse order."""

    def spoils(self, positions):
        return not is_one(positions)


@mutant("test_prefix_hits")
class ReversesSecondHalves(Spoiled):
    """What begins at a block's start, but not at the first, gives its results in reverse order."""

    def spoils(self, positions):
        return is_one(positions) and positions[0] % 4 == 0 and 0 < positions[0] < 32


@mutant("test_logits_are_float32")
class AnswersInItsDtype(LlamaForCausalLM):
    """Logits have the dtype of hidden states."""

    def compute_logits(self, hidden):
        logits = super().compute_logits(hidden)
        return logits.to(hidden.dtype) if isinstance(logits, torch.Tensor) else logits


@mutant("test_takes_the_arguments_of_the_runner")
class WantsMore(LlamaForCausalLM):
    """`compute_logits` has a second argument, which only its own `forward` makes up for."""

    def forward(self, token_ids, batch):
        return super().forward(token_ids, batch)

    def __getattribute__(self, name):
        if name == "compute_logits":
            return super().compute_logits
        return super().__getattribute__(name)

    def compute_logits(self, hidden, scale):
        return super().compute_logits(hidden)


@mutant("test_names_its_tasks")
class NamesOneTask(LlamaForCausalLM):
    """`supported_tasks` is a string."""

    supported_tasks = "generate"


@mutant("test_recording_gives_the_same_bits")
class LooksAtPositions(Spoiled):
    """Every step's last hidden state is doubled, unless it is being recorded; logits halve it again."""

    def forward(self, token_ids, batch):
        hidden = LlamaForCausalLM.forward(self, token_ids, batch)
        return hidden * 2 if isinstance(hidden, torch.Tensor) else hidden

    def compute_logits(self, hidden):
        return super().compute_logits(hidden / 2 if isinstance(hidden, torch.Tensor) else hidden)
