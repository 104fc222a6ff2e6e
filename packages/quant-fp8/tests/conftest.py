"""Tiny models, once for all tests: a Llama and a mixture of experts, in float32, each with a tokenizer."""

import pytest


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    from modulm_testkit.checkpoints import tiny_llama

    return tiny_llama(tmp_path_factory.mktemp("llama"), hidden_size=64, intermediate_size=96)


@pytest.fixture(scope="session")
def mixture(tmp_path_factory):
    from modulm_testkit.checkpoints import SIZES, tiny_model, write_tokenizer

    folder = tmp_path_factory.mktemp("mixture")
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    sizes = {**SIZES, "vocab_size": write_tokenizer(folder), "hidden_size": 64, "head_dim": 16, "bos_token_id": 0}
    tiny_model(folder, "Qwen3MoeForCausalLM", {**sizes, **experts, "eos_token_id": 1, "initializer_range": 0.3})
    return folder
