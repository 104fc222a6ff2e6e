"""Logits processors under vLLM's names: their rows, and the configuration that they are made with."""

import pytest
from vllm.config import VllmConfig, get_current_vllm_config, get_current_vllm_config_or_none
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from modulm import SamplingParams
from modulm.config import EngineConfig
from modulm.plugins.hooks import load_logits_processors


class Keeping(LogitsProcessor):
    """Keeps what it is made with."""

    def __init__(self, vllm_config, device, is_pin_memory):
        self.made_with = (vllm_config, device, is_pin_memory, get_current_vllm_config())

    def apply(self, logits):
        return logits

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update): ...


class PerRequest(AdapterLogitsProcessor):
    """Wants two arguments from one request and three from another."""

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        if params.min_p:
            return lambda prompt, output, row: (prompt, output, row)
        return lambda output, row: (output, row)


def test_one_is_made_with_vllm_s_configuration():
    (made_class,) = load_logits_processors([Keeping])
    assert issubclass(made_class, Keeping) and made_class.__qualname__ == "Keeping"
    made = made_class(EngineConfig.make(model="m", max_num_seqs=5, block_size=8), "device", False)
    config, device, pinned, current = made.made_with
    assert isinstance(config, VllmConfig) and current is config and get_current_vllm_config_or_none() is None
    assert (config.scheduler_config.max_num_seqs, config.cache_config.block_size) == (5, 8)
    assert (config.model_config.model, device, pinned) == ("m", "device", False)


def test_callables_of_requests_get_what_they_take():
    (made_class,) = load_logits_processors([PerRequest])
    made = made_class(EngineConfig.make(model="m"), None, False)
    first, second = SamplingParams(min_p=0.5), SamplingParams()
    added = [(0, first, [1, 2], [3]), (1, second, [4], output := [])]
    made.update_state(BatchUpdate(batch_size=2, removed=[], added=added, moved=[]))
    output.append(9)  # the list lives on
    assert made.apply(["r0", "r1"]) == [([1, 2], [3], "r0"), ([9], "r1")]


def test_rows_follow_removed_then_added_then_moved():
    def new(params, prompt_ids, output_ids):
        return params.seed

    def params(seed):
        return SamplingParams(seed=seed)

    rows = {0: "a", 1: "b", 2: "c"}
    assert process_dict_updates(rows, None, new) is False
    moved = [(2, 0, MoveDirectionality.SWAP), (0, 3, MoveDirectionality.UNIDIRECTIONAL)]
    added = [(1, params(None), None, []), (4, params(7), None, [])]
    assert process_dict_updates(rows, BatchUpdate(batch_size=5, removed=[0], added=added, moved=moved), new) is True
    # 0 leaves; 1 is overwritten by a request that wants nothing; c goes from 2 to 0 and on to 3
    assert rows == {3: "c", 4: 7}
    assert process_dict_updates(rows, BatchUpdate(batch_size=5, removed=[9], added=[], moved=[]), new) is False


def test_the_second_interface_is_not_there_and_the_error_says_what_is():
    with pytest.raises(ModuleNotFoundError, match="is not here.*'vllm.v1.worker' has: .*cpu_worker"):
        import vllm.v1.worker.gpu.sample.logits_processor  # noqa: F401
