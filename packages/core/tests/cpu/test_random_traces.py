"""Random traffic on a real model: whatever the batch did, each request's output is that of a run alone.

The scheduler's own traces (`tests/null/engine`) are many and use an honest fake; these are few and use real tensors.
"""

import random

import pytest

from modulm import RequestOutputKind, SamplingParams

SHARED = [list(range(20, 52)), list(range(60, 75))]


def _request(rng):
    start = rng.choice([[], *SHARED])
    prompt = [*start, *[rng.randrange(10, 300) for _ in range(rng.randrange(1, 25))]]
    options = {"max_tokens": rng.randrange(1, 30), "ignore_eos": True, "temperature": rng.choice([0.0, 1.0])}
    if options["temperature"]:
        options |= {"seed": rng.randrange(1000), "top_k": rng.choice([0, 5]), "top_p": rng.choice([1.0, 0.8])}
        options |= {"n": rng.choice([1, 1, 3])}
    options |= {"repetition_penalty": rng.choice([1.0, 1.0, 1.5]), "logprobs": rng.choice([None, 2])}
    return {"prompt_token_ids": prompt}, SamplingParams(**options, output_kind=RequestOutputKind.FINAL_ONLY)


def _ids(output):
    return [completion.token_ids for completion in output.outputs]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("model", ["tiny_folder", "tiny_windowed_folder"])
def test_outputs_equal_those_of_a_run_alone(tiny_llm, model, seed, request):
    rng = random.Random(seed)
    model = str(request.getfixturevalue(model))
    options = {
        "model": model,
        "max_model_len": 128,
        "block_size": 4,
        "num_kv_blocks": rng.choice([90, 130]) if "gemma" in model else rng.choice([40, 60]),
        "max_num_seqs": 6,
    }
    policy = rng.choice(["fcfs", "priority"])
    llm = tiny_llm(
        **options,
        max_num_batched_tokens=rng.choice([9, 40]),
        scheduling_policy=policy,
        enable_prefix_caching=rng.random() < 0.7,
    )
    frontend = llm._frontend
    sent, ended, aborted = {}, {}, set()
    for step in range(400):
        if step < 60 and rng.random() < 0.4:
            prompt, params = _request(rng)
            priority = rng.randrange(3) if policy == "priority" else 0
            sent[frontend.submit(prompt, params, priority=priority)] = (prompt, params)
        if sent and rng.random() < 0.04:
            label = rng.choice(sorted(sent))
            if label not in ended:
                aborted.add(label)
                frontend.abort(label)
        for output in frontend.poll():
            if output.finished:
                assert output.request_id not in ended, "ended twice"
                ended[output.request_id] = output
        if step >= 60 and not frontend.has_work():
            break
    assert set(ended) == set(sent)
    llm.generate({"prompt_token_ids": [5]}, SamplingParams(max_tokens=1))  # lets the last blocks go
    assert llm.stats().scheduler.kv_cache_usage == 0.0
    alone = tiny_llm(model=model, max_model_len=128, num_kv_blocks=600, enable_prefix_caching=False)
    for label in sorted(set(sent) - aborted):
        assert _ids(ended[label]) == _ids(alone.generate(*sent[label])[0]), label
