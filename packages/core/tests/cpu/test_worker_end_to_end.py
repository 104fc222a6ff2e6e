"""A worker with real models, driven by hand-made plans, against transformers: tokens, log-probabilities, windows.

Plans are cut at random: chunks, decodes and both mixed, preemption, blocks in random order and reused as soon as a
window has passed them.
"""

import random

import pytest
import torch

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import CheckpointError, ConfigError, EngineError, did_you_mean
from modulm.interfaces.checkpoint import Checkpoint, TensorInfo
from modulm.reference.attention_torch import TorchAttention
from modulm.reference.linear_torch import TorchKernels
from modulm.reference.platform_cpu import CPUPlatform
from modulm.sampling_params import SamplingParams
from modulm.types import NewSequence, Plan, Request, Scheduled
from modulm.worker.executors import InProcessExecutor
from modulm.worker.worker import Worker

MAX_MODEL_LEN, BLOCK_SIZE, VOCAB = 96, 4, 101


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads that wait for each other on a busy machine make tiny tensors slow a hundredfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class MemoryCheckpoint(Checkpoint):
    format, path = "memory", "memory"

    def __init__(self, tensors):
        self.tensors = {name: tensor.numpy() for name, tensor in tensors.items()}

    @classmethod
    def matches(cls, path):
        raise NotImplementedError

    @classmethod
    def open(cls, path):
        raise NotImplementedError

    def config(self):
        return {}

    def generation_config(self):
        return {}

    def tokenizer(self):
        raise NotImplementedError

    def tensor_names(self):
        return self.tensors

    def info(self, name):
        if name not in self.tensors:
            raise CheckpointError(f"Tensor {name!r} is missing in {self.path}.{did_you_mean(name, self.tensors)}")
        tensor = self.tensors[name]
        return TensorInfo(shape=tensor.shape, dtype=tensor.dtype.name, size_bytes=tensor.nbytes)

    def tensor(self, name):
        return self.tensors[name]


def make_reference(kind):
    """Return (transformers' model in float32, our class)."""
    import transformers

    from modulm.models.gemma3 import Gemma3ForCausalLM
    from modulm.models.llama import LlamaForCausalLM
    from modulm.models.mistral import MistralForCausalLM

    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": MAX_MODEL_LEN, "initializer_range": 0.3,
        "attn_implementation": "eager",
    }  # fmt: skip
    torch.manual_seed(11)
    if kind == "llama":
        config = transformers.LlamaConfig(num_hidden_layers=2, **sizes)
        model, ours = transformers.LlamaForCausalLM(config), LlamaForCausalLM
    elif kind == "mistral":
        config = transformers.MistralConfig(num_hidden_layers=2, sliding_window=7, **sizes)
        model, ours = transformers.MistralForCausalLM(config), MistralForCausalLM
    else:
        config = transformers.Gemma3TextConfig(
            num_hidden_layers=6, layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2, sliding_window=7,
            head_dim=16, query_pre_attn_scalar=16, **sizes,
        )  # fmt: skip
        model, ours = transformers.Gemma3ForCausalLM(config), Gemma3ForCausalLM
    return model.float().eval(), ours


def make_worker(reference, model_class, **options):
    progress = options.pop("progress", None)
    tensors = options.pop("tensors", None) or reference.state_dict()
    processors = options.pop("logits_processors", [])
    hf = reference.config.to_dict()
    architectures = [type(reference).__name__]
    model_config = ModelConfig(
        name="tiny", hf=hf, architectures=architectures, dtype="float32", max_model_len=MAX_MODEL_LEN
    )
    config = EngineConfig.make(model="tiny", **({"block_size": BLOCK_SIZE, "num_kv_blocks": 200} | options))
    backend = TorchAttention()
    return Worker(
        config, model_config, checkpoint=MemoryCheckpoint(tensors), model_class=lambda: model_class, scheme=None,
        kernels=[TorchKernels()], attention=lambda spec: backend, platform=CPUPlatform(),
        logits_processors=processors, progress=progress,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["llama", "mistral", "gemma3"])
def pair(request):
    return make_reference(request.param)


@pytest.fixture(scope="module")
def llama():
    return make_reference("llama")


class Driver:
    """Plays the engine: cuts plans at random and hands out blocks, freed ones first in random order."""

    def __init__(self, worker, seed=0):
        self.worker, self.random = worker, random.Random(seed)
        self.layout = worker.kv_layout()
        self.free = list(range(1, self.layout.num_blocks))
        self.live, self.waiting, self.forget, self.done = {}, [], [], {}

    def submit(self, request_id, prompt, max_tokens=8, **params):
        request = Request(
            request_id=request_id, prompt_token_ids=prompt, params=SamplingParams(**params), max_tokens=max_tokens
        )
        self.waiting.append({"request": request, "tokens": list(prompt), "logprobs": [], "prompt_logprobs": []})

    def release(self, sequence):
        self.free += [b for table in sequence["tables"] for b in table if b]

    def preempt(self, request_id):
        sequence = self.live.pop(request_id)
        self.release(sequence)
        self.forget.append(request_id)
        self.waiting.append(sequence)

    def step(self, chunk=5):
        new = []
        while self.waiting and self.random.random() < 0.7:
            sequence = self.waiting.pop(0)
            sequence |= {"computed": 0, "tables": [[] for _ in self.layout.groups]}
            self.live[sequence["request"].request_id] = sequence
            new.append(NewSequence(request=sequence["request"], token_ids=list(sequence["tokens"])))
        names = [name for name in self.live if self.random.random() < 0.8]
        self.random.shuffle(names)
        plan = Plan(new=new, forget=self.forget, scheduled=[self.schedule(name, chunk) for name in names])
        self.forget = []
        result = self.worker.execute(plan)
        assert [s.request_id for s in result.sampled] == names
        for scheduled, sampled in zip(plan.scheduled, result.sampled, strict=True):
            self.take_in(scheduled, sampled)
        return plan, result

    def schedule(self, name, chunk):
        sequence, size = self.live[name], BLOCK_SIZE
        start = sequence["computed"]
        count = min(self.random.randint(1, chunk), len(sequence["tokens"]) - start)
        new_block_ids = []
        for group, table in zip(self.layout.groups, sequence["tables"], strict=True):
            if group.sliding_window:
                for j in range(min(max(0, start - group.sliding_window + 1) // size, len(table))):
                    if table[j]:
                        self.free.append(table[j])
                        table[j] = 0
            missing = -(-(start + count) // size) - len(table)
            fresh = [self.free.pop(self.random.randrange(len(self.free))) for _ in range(missing)]
            table.extend(fresh)
            new_block_ids.append(fresh)
        sequence["computed"] = start + count
        return Scheduled(
            request_id=name, start=start, num_tokens=count, new_block_ids=new_block_ids,
            samples=start + count == len(sequence["tokens"]),
        )  # fmt: skip

    def take_in(self, scheduled, sampled):
        sequence = self.live[scheduled.request_id]
        assert sampled.error is None
        assert bool(sampled.token_ids) == scheduled.samples
        sequence["tokens"] += sampled.token_ids
        sequence["logprobs"] += sampled.logprobs or []
        sequence["prompt_logprobs"] += sampled.prompt_logprobs or []
        request = sequence["request"]
        if len(sequence["tokens"]) == len(request.prompt_token_ids) + request.max_tokens:
            self.done[request.request_id] = self.live.pop(request.request_id)
            self.release(sequence)
            self.forget.append(request.request_id)

    def run(self, preempting=0.0, **options):
        for _ in range(2000):
            if not self.live and not self.waiting:
                return self.done
            if self.live and self.random.random() < preempting:
                self.preempt(self.random.choice(sorted(self.live)))
            self.step(**options)
        raise AssertionError("it does not end")


def prompts(count, seed=0):
    rng = random.Random(seed)
    return {str(i): [rng.randrange(VOCAB) for _ in range(rng.randint(1, 40))] for i in range(count)}


def logits_of(reference, tokens):
    with torch.inference_mode():
        return reference(torch.tensor([tokens])).logits[0].double()


@pytest.mark.parametrize("preempting", [0.0, 0.15])
def test_greedy_tokens_and_logprobs_equal_transformers(pair, preempting):
    reference, model_class = pair
    driver = Driver(make_worker(reference, model_class), seed=1)
    wanted = prompts(5)
    for name, prompt in wanted.items():
        driver.submit(name, prompt, max_tokens=12, temperature=0.0, logprobs=3, prompt_logprobs=2)
    done = driver.run(preempting=preempting)
    assert len(driver.free) == driver.layout.num_blocks - 1
    for name, prompt in wanted.items():
        tokens = done[name]["tokens"]
        expected = logits_of(reference, tokens).log_softmax(-1)
        assert tokens[len(prompt) :] == expected.argmax(-1)[len(prompt) - 1 : -1].tolist()
        entries = done[name]["logprobs"]
        assert len(entries) == 12
        for offset, entry in enumerate(entries):
            row = expected[len(prompt) - 1 + offset]
            assert entry.rank == 1
            assert entry.top_ids == row.topk(3).indices.tolist()
            assert entry.top_logprobs == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
        if not preempting:  # else some are computed twice, and the engine knows which
            scored = done[name]["prompt_logprobs"]
            assert [e.token_id for e in scored] == prompt[1:]
            found = [expected[i, token].item() for i, token in enumerate(prompt[1:])]
            assert [e.logprob for e in scored] == pytest.approx(found, abs=1e-4)
            assert [e.top_ids for e in scored] == [row.topk(2).indices.tolist() for row in expected[: len(prompt) - 1]]


def test_groups_follow_the_models_windows(pair):
    reference, model_class = pair
    groups = make_worker(reference, model_class).kv_layout().groups
    found = [(g.sliding_window, len(g.layer_names)) for g in groups]
    expected = {
        "LlamaForCausalLM": [(None, 2)],
        "MistralForCausalLM": [(7, 2)],
        "Gemma3ForCausalLM": [(7, 2)] * 2 + [(None, 2)],
    }
    assert found == expected[model_class.__name__]


def test_seeded_tokens_do_not_depend_on_how_steps_are_cut(llama):
    params = {"a": {"seed": 1}, "b": {"seed": 2, "top_k": 5}, "c": {"seed": 3, "top_p": 0.8}, "d": {"temperature": 0.0}}
    results = []
    for seed, preempting in [(1, 0.0), (2, 0.0), (3, 0.2)]:
        driver = Driver(make_worker(*llama), seed=seed)
        for number, (name, own) in enumerate(params.items()):
            driver.submit(name, prompts(9, seed=4)[str(number)], max_tokens=9, **own)
        done = driver.run(preempting=preempting)
        results.append({name: done[name]["tokens"] for name in params})
    assert results[0] == results[1] == results[2]


def test_only_rows_that_sample_have_logits(llama, monkeypatch):
    worker = make_worker(*llama)
    asked = []
    program = worker._runner._program
    monkeypatch.setattr(
        program, "logits", lambda hidden, index, old=program.logits: asked.append(index.tolist()) or old(hidden, index)
    )
    driver = Driver(worker)
    driver.submit("a", list(range(30)), max_tokens=1, temperature=0.0)
    driver.run()
    assert len(asked) == 1
    assert len(asked[0]) == 1


def test_long_prompts_are_scored_in_slices(llama, monkeypatch):
    worker = make_worker(*llama)
    monkeypatch.setattr(worker._runner, "_rows_at_once", 4)
    driver = Driver(worker)
    prompt = prompts(1, seed=9)["0"] * 3
    driver.submit("a", prompt[:50], max_tokens=1, temperature=0.0, prompt_logprobs=0)
    entries = driver.run(chunk=40)["a"]["prompt_logprobs"]
    expected = logits_of(llama[0], prompt[:50]).log_softmax(-1)
    assert [e.logprob for e in entries] == pytest.approx(
        [expected[i, t].item() for i, t in enumerate(prompt[1:50])], abs=1e-4
    )


def test_a_sequence_with_nan_fails_alone(llama):
    reference, model_class = llama
    tensors = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    tensors["model.embed_tokens.weight"][100] = float("nan")
    driver = Driver(make_worker(reference, model_class, tensors=tensors))
    tables = [[1], [2]]
    requests = [[100, 1], [5, 1]]
    new, scheduled = [], []
    for name, prompt, table in zip("ab", requests, tables, strict=True):
        request = Request(
            request_id=name, prompt_token_ids=prompt, params=SamplingParams(temperature=0.0), max_tokens=3
        )
        new.append(NewSequence(request=request, token_ids=prompt))
        scheduled.append(Scheduled(request_id=name, start=0, num_tokens=2, new_block_ids=[table], samples=True))
    bad, good = driver.worker.execute(Plan(new=new, scheduled=scheduled)).sampled
    assert "not finite" in bad.error
    assert bad.token_ids == []
    assert good.error is None
    assert good.token_ids == [logits_of(reference, [5, 1])[-1].argmax().item()]


def test_empty_plans_and_unknown_ids(llama):
    worker = make_worker(*llama)
    assert worker.execute(Plan(forget=["nobody"])).sampled == []


def test_executor_chains_what_a_step_raises_and_shuts_down_twice(llama):
    executor = InProcessExecutor(make_worker(*llama))
    assert executor.kv_layout().block_size == BLOCK_SIZE
    request = Request(request_id="a", prompt_token_ids=[5000], params=SamplingParams(), max_tokens=1)
    wrong = Scheduled(request_id="a", start=0, num_tokens=1, new_block_ids=[[1]], samples=True)
    plan = Plan(new=[NewSequence(request=request, token_ids=[5000])], scheduled=[wrong])
    with pytest.raises(EngineError, match="A step of 1 sequences failed in the worker: IndexError") as caught:
        executor.execute(plan)
    assert isinstance(caught.value.__cause__, IndexError)
    assert executor.execute(Plan(forget=["a"])).sampled == []
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(EngineError, match="has been shut down"):
        executor.execute(Plan())


def test_progress_ends_with_all_tensors(llama):
    seen = []
    make_worker(*llama, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (len(llama[0].state_dict()),) * 2


def test_checkpoint_faults_name_the_tensor(llama):
    reference, model_class = llama
    tensors = dict(reference.state_dict())
    moved = tensors.pop("model.layers.1.mlp.up_proj.weight")
    with pytest.raises(
        CheckpointError, match=r"'model.layers.1.mlp.up_proj.weight' is missing .*Did you mean 'model.layers"
    ):
        make_worker(reference, model_class, tensors=tensors)
    tensors["model.layers.1.mlp.up_proj.weight"] = moved[:-1]
    with pytest.raises(CheckpointError, match=r"has shape \[63, 32\], but the model needs \[64, 32\]"):
        make_worker(reference, model_class, tensors=tensors)
    tensors["model.layers.1.mlp.up_proj.weight"] = moved
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    make_worker(reference, model_class, tensors=tensors)
    tensors["model.layers.2.mlp.up_proj.weight"] = moved
    with pytest.raises(CheckpointError, match=r"1 tensors .* have no place .* 'model.layers.2.mlp.up_proj.weight'"):
        make_worker(reference, model_class, tensors=tensors)


def test_a_cache_too_small_for_one_sequence_is_refused(llama):
    with pytest.raises(ConfigError, match="max_model_len=96 does not fit: .* needs 25 KV blocks"):
        make_worker(*llama, num_kv_blocks=24)
