"""Tiny models, once for all tests: a Llama and a mixture of experts, in float32, each with a tokenizer."""

import pytest


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    from modulm_testkit.checkpoints import tiny_llama

    return tiny_llama(tmp_path_factory.mktemp("llama"), hidden_size=64, intermediate_size=96)


@pytest.fixture(scope="session")
def mixture(tmp_path_factory):
    from modulm_testkit.checkpoints import tiny_mixture

    return tiny_mixture(tmp_path_factory.mktemp("mixture"))
