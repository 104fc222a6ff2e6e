"""`AsyncLLM`: the answers are those of `LLM`, whatever process the engine is in; what fails, ends and is given back."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from modulm import LLM, AsyncLLM, RequestOutputKind, SamplingParams
from modulm.config import EngineConfig
from modulm.engine_process import ChildTraceback
from modulm.errors import CheckpointError, ConfigError, EngineError, RequestError, Unsupported
from modulm.interfaces.logits import LogitsProcessor
from modulm.interfaces.metrics import AggregateStatLoggerBase
from modulm.transport import restarts

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
LONG = GREEDY.clone(max_tokens=230)
PROMPTS = [[9, 10, 11], [40, 41], [70], "the quick brown fox", {"prompt": "a b c"}, {"prompt_token_ids": [5, 6]}]


def config(folder, **options):
    return EngineConfig.make(model=str(folder), **{"num_kv_blocks": 200, "max_num_seqs": 16, **options})


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory):
    """Engines of this file outlive a test, and so must what `core_alone` sets for each; their folders are counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_PLUGINS", "")
        patch.setenv("MODULM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", tempfile.mkdtemp(prefix="count-"))
        yield


@pytest.fixture(scope="module")
def apart(tiny_folder, environment):
    """An engine in a process of its own, for all tests that leave it as it was."""
    engine = AsyncLLM.from_config(config(tiny_folder), engine_restarts=100)
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def beside(tiny_folder, environment):
    """An engine in a thread of this process."""
    engine = AsyncLLM.from_config(config(tiny_folder), in_process=True)
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def llm(tiny_folder, environment):
    llm = LLM.from_config(config(tiny_folder))
    yield llm
    llm.shutdown()


@pytest.fixture(params=["apart", "beside"])
def engine(request):
    return request.getfixturevalue(request.param)


def child(engine):
    return psutil.Process(engine._serving.client._engine.pid)


def resources():
    """What this process holds: file descriptors, threads, children (zombies too), folders."""
    process = psutil.Process()
    return {
        "files": process.num_fds(),
        "threads": process.num_threads(),
        "children": len(process.children()),
        "folders": len(os.listdir(tempfile.gettempdir())),
    }


def settled(expected):
    """Return what is held, once it is what is expected; threads end a moment after they are joined."""
    deadline = time.monotonic() + 2
    while resources() != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return resources()


async def read(engine, prompt, params=GREEDY, most=None, **options):
    outputs = []
    async with contextlib.aclosing(engine.generate(prompt, params, **options)) as stream:
        async for output in stream:
            outputs.append(output)
            if len(outputs) == most:
                break
    return outputs


def tokens(outputs):
    return [token for output in outputs for token in output.outputs[0].token_ids]


def text(outputs):
    return "".join(output.outputs[0].text for output in outputs)


async def until(condition, most_s=60.0):
    deadline = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def idle(engine):
    """Whether nothing is left in the engine, by its own account."""
    scheduler = engine.stats().scheduler
    return (scheduler.num_running_reqs, scheduler.num_waiting_reqs, scheduler.kv_cache_usage) == (0, 0, 0.0)


def test_answers_are_those_of_the_offline_door(engine, llm):
    async def all_at_once():
        return await asyncio.gather(*[read(engine, prompt) for prompt in PROMPTS])

    expected = [llm.generate([prompt], GREEDY)[0] for prompt in PROMPTS]
    for outputs, whole in zip(asyncio.run(all_at_once()), expected, strict=True):
        assert (tokens(outputs), text(outputs)) == (whole.outputs[0].token_ids, whole.outputs[0].text)
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]  # steps may be joined
        assert (outputs[0].prompt, outputs[0].prompt_token_ids) == (whole.prompt, whole.prompt_token_ids)
    asyncio.run(until(lambda: idle(engine), 1.0))


@pytest.mark.parametrize(
    "options",
    [
        {"n": 3, "temperature": 1.0, "seed": 5},
        {"logprobs": 2, "prompt_logprobs": 1},
        {"max_tokens": 60, "stop": ["e", "o"]},
        {"output_kind": RequestOutputKind.FINAL_ONLY},
        {"output_kind": RequestOutputKind.CUMULATIVE},
        {"bad_words": ["a"], "min_tokens": 4, "logit_bias": {7: 2.5}},
    ],
    ids=str,
)
def test_parameters_cross_the_wall(engine, llm, options):
    params = GREEDY.clone(**options)
    whole = llm.generate([[9, 10, 11]], params)[0]
    last = asyncio.run(read(engine, [9, 10, 11], params.clone(output_kind=RequestOutputKind.CUMULATIVE)))[-1]
    assert len(last.outputs) >= 1 and last.prompt_logprobs == whole.prompt_logprobs
    for one in last.outputs:
        other = whole.outputs[one.index]
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert (one.logprobs, one.stop_reason) == (other.logprobs, other.stop_reason)
    if params.output_kind is RequestOutputKind.FINAL_ONLY:
        assert len(asyncio.run(read(engine, [9, 10, 11], params))) == 1
    asyncio.run(until(lambda: idle(engine), 1.0))


def test_a_conversation(engine, llm):
    messages = [{"role": "user", "content": "the fox"}]
    prompt = engine.render(messages, add_generation_prompt=True)
    assert prompt["prompt"] == "<|user|>the fox\n<|assistant|>"
    params = engine.default_params().clone(temperature=0.0, max_tokens=5, output_kind=RequestOutputKind.DELTA)
    assert tokens(asyncio.run(read(engine, prompt, params))) == llm.chat(messages, params)[0].outputs[0].token_ids


def test_ids_are_labels(engine, llm):
    async def twice():
        return await asyncio.gather(read(engine, [9], request_id="x"), read(engine, [70], request_id="x"))

    for outputs, prompt in zip(asyncio.run(twice()), ([9], [70]), strict=True):
        assert {output.request_id for output in outputs} == {"x"}
        assert tokens(outputs) == llm.generate([prompt], GREEDY)[0].outputs[0].token_ids


def test_a_refused_request_says_why_and_the_next_is_served(engine):
    for prompt, params, parameter in [([], GREEDY, "prompt"), ([10**6], GREEDY, "prompt"), ("x" * 9999, GREEDY, None)]:
        with pytest.raises(RequestError) as caught:
            asyncio.run(read(engine, prompt, params))
        assert parameter in (None, caught.value.parameter)
    with pytest.raises(RequestError, match="first come"):
        asyncio.run(read(engine, [9], priority=3))
    assert len(tokens(asyncio.run(read(engine, [9])))) == 12


def test_who_stops_reading_frees_the_blocks(engine):
    async def stop():
        await read(engine, [9], LONG, most=2)
        task = asyncio.create_task(read(engine, [9], LONG))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(read_some_then_drop)

    def read_some_then_drop():
        async def drop():
            async for _ in engine.generate([9], LONG):
                break

        asyncio.run(drop())

    asyncio.run(stop())
    asyncio.run(until(lambda: idle(engine), 1.0))


def test_a_thousand_requests_with_random_aborts(engine, llm):
    """No block, file or thread is lost, each request ends once, and only who stopped early missed anything."""
    rng = random.Random(3)
    prompts = [[rng.randrange(6, 300) for _ in range(rng.randrange(1, 20))] for _ in range(20)]
    expected = [llm.generate([prompt], GREEDY)[0].outputs[0].token_ids for prompt in prompts]

    async def one(number, limit):
        async with limit:
            which, how = number % 20, rng.choice(["all", "all", "some", "cancel"])
            task = asyncio.create_task(
                read(engine, prompts[which], most=rng.randrange(1, 11) if how == "some" else None)
            )
            if how == "cancel":
                await asyncio.sleep(rng.random() * 0.05)
                task.cancel()
            try:
                outputs = await task
            except asyncio.CancelledError:
                return
            found = tokens(outputs)
            assert found == expected[which][: len(found)]
            assert sum(output.finished for output in outputs) == (len(found) == 12)
            assert how == "some" or len(found) == 12

    async def all_of_them():
        limit = asyncio.Semaphore(40)
        await asyncio.gather(*[one(number, limit) for number in range(1000)])

    asyncio.run(read(engine, "text starts the threads"))
    before = resources()
    asyncio.run(all_of_them())
    asyncio.run(until(lambda: idle(engine), 1.0))
    assert engine._streams.num_open == 0 and not engine._serving.frontend.has_work()
    assert settled(before) == before


def test_what_it_is_made_of(engine, llm):
    assert engine.describe() == llm.explain()
    assert engine.model_config == llm.model_config
    assert engine.tokenizer.encode("the fox") == llm.get_tokenizer().encode("the fox")
    assert engine.health().ready
    processes = {record["process"] for record in engine.plugin_records()}
    assert processes <= {"engine", "frontend"}


def test_only_strings_cross_the_wall(tiny_folder):
    class Local(LogitsProcessor):
        pass

    with pytest.raises(ConfigError, match=r"Local.*cannot be found by an engine process.*in_process=True"):
        AsyncLLM.from_config(config(tiny_folder, logits_processors=[Local]))
    with pytest.raises(ConfigError, match=r"cannot be sent to an engine process.*in_process=True"):
        AsyncLLM.from_config(config(tiny_folder, seed=10**30))


def test_what_fails_while_loading_is_raised_here_and_leaves_nothing(tiny_folder, tmp_path):
    before = resources()
    with pytest.raises(Unsupported, match="no config.json") as caught:
        AsyncLLM.from_config(config(tmp_path))
    assert isinstance(caught.value.__cause__, ChildTraceback) and "resolve.py" in str(caught.value.__cause__)
    with pytest.raises(ConfigError, match="chat_template"):
        AsyncLLM.from_config(config(tiny_folder, chat_template="{% broken"))
    with pytest.raises(ConfigError, match="does not fit"):
        AsyncLLM.from_config(config(tiny_folder, num_kv_blocks=None, kv_cache_memory_bytes=100))
    assert settled(before) == before


def test_a_killed_engine(apart, llm):
    """Every stream ends with an error within a second, requests are told to come again, and then are served."""
    expected = llm.generate([[9]], GREEDY)[0].outputs[0].token_ids

    async def kill():
        streams = [asyncio.create_task(read(apart, [9 + n], LONG)) for n in range(30)]
        waiting = asyncio.create_task(read(apart, "a text", LONG))
        await until(lambda: apart.stats().iteration.num_generation_tokens > 0)
        child(apart).send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        ended = await asyncio.gather(*streams, waiting)
        assert time.monotonic() - killed_at < 1.0
        for outputs in ended:
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            assert outputs[-1].outputs[0].finish_reason == "error" and "SIGKILL" in outputs[-1].error
        health = apart.health()
        assert health.alive and not health.ready and "SIGKILL" in health.reason
        with pytest.raises(EngineError, match="try again in") as caught:
            await read(apart, [9])
        assert 1 <= caught.value.retry_after_s < 60
        await until(lambda: apart.health().ready)
        assert tokens(await read(apart, [9])) == expected

    async def while_idle():
        child(apart).send_signal(signal.SIGKILL)
        await until(lambda: not apart.health().ready, 1.0)
        await until(lambda: apart.health().ready)
        assert tokens(await read(apart, [9])) == expected

    restarts_before = apart.health().restarts
    before = resources()
    asyncio.run(kill())
    asyncio.run(while_idle())
    asyncio.run(kill())
    assert settled(before) == before
    assert apart.health().restarts == restarts_before + 3
    assert idle(apart)


def test_signals_to_the_group_are_the_parents_to_answer(apart):
    process = child(apart)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    time.sleep(0.2)
    assert len(tokens(asyncio.run(read(apart, [9])))) == 12
    assert child(apart).pid == process.pid


def test_a_stopped_engine_is_not_ready(apart, monkeypatch):
    monkeypatch.setattr(restarts, "SILENCE_S", 2.0)
    process = child(apart)
    process.suspend()
    try:
        asyncio.run(until(lambda: not apart.health().ready, 10))
        assert "no sign of life" in apart.health().reason
    finally:
        process.resume()
    asyncio.run(until(lambda: apart.health().ready, 10))
    assert len(tokens(asyncio.run(read(apart, [9])))) == 12


class Logger(AggregateStatLoggerBase):
    made, failure = [], None

    def __init__(self, vllm_config, engine_indexes):
        self.told, self.config = [], vllm_config
        self.made.append(self)

    def log_engine_initialized(self): ...

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        self.told.append((scheduler_stats, iteration_stats, os.getpid()))
        if self.failure:
            raise self.failure


@pytest.mark.parametrize("in_process", [False, True], ids=["apart", "beside"])
def test_from_the_first_request_to_the_drained_end(tiny_folder, in_process):
    """Stat loggers, draining and the end, on one engine: starting takes seconds."""
    before = resources()
    made = []
    classes = [type("Own", (Logger,), {"made": made, "failure": failure}) for failure in (KeyError("a bug"), None)]
    engine = AsyncLLM.from_config(config(tiny_folder), in_process=in_process, stat_loggers=classes)
    bad, good = made
    assert good.config.cache_config.num_gpu_blocks == engine.config.num_kv_blocks

    async def life():
        await asyncio.gather(*[read(engine, [9 + n]) for n in range(4)])
        await until(lambda: sum(iteration.num_generation_tokens for _, iteration, _ in good.told) == 4 * 12)
        assert len(good.told) >= 12 and {pid for *_, pid in good.told} == {os.getpid()}
        await until(lambda: len(bad.told) == 1)
        assert engine.stats().scheduler.num_running_reqs == 0
        short = [asyncio.create_task(read(engine, [9], GREEDY.clone(max_tokens=30))) for _ in range(3)]
        await asyncio.sleep(0.05)
        await engine.drain(30)
        assert [len(tokens(outputs)) for outputs in await asyncio.gather(*short)] == [30] * 3
        assert not engine.health().ready and engine.health().alive
        with pytest.raises(EngineError, match="takes no more requests"):
            await read(engine, [9])

    asyncio.run(life())
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(EngineError, match="shut down"):
        engine.stats()
    if not in_process:  # libraries that an engine loads keep threads of their own
        assert settled(before) == before


@pytest.mark.parametrize("how", ["drain", "shutdown"])
def test_what_does_not_end_in_time_is_aborted(tiny_folder, how):
    engine = AsyncLLM.from_config(config(tiny_folder), in_process=how == "drain")

    async def end():
        streams = [asyncio.create_task(read(engine, prompt, LONG)) for prompt in ([9], [40, 41], "the fox")]
        await until(lambda: engine.stats().scheduler.num_running_reqs == 3)
        await (engine.drain(0.0) if how == "drain" else asyncio.to_thread(engine.shutdown))
        for outputs in await asyncio.gather(*streams):
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            assert outputs[-1].outputs[0].finish_reason == "abort"

    asyncio.run(end())
    engine.shutdown()


ORPHAN = """
import os, signal, sys, tempfile
from modulm import AsyncLLM
from modulm.config import EngineConfig
tempfile.tempdir = sys.argv[2]
engine = AsyncLLM.from_config(EngineConfig.make(model=sys.argv[1], num_kv_blocks=40))
print(engine._serving.client._engine.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_engine_ends_with_its_parent(tiny_folder, tmp_path):
    folder = Path(tempfile.mkdtemp())
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN, str(tiny_folder), str(folder)], stdout=subprocess.PIPE, check=False
    )
    pid = int(done.stdout)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert list(folder.iterdir()) == []
    folder.rmdir()


def test_an_engine_that_cannot_load_again_is_given_up(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(restarts, "_FIRST_DELAY_S", 0.05)
    folder = tmp_path / "model"
    folder.symlink_to(tiny_folder)
    before = resources()
    engine = AsyncLLM.from_config(config(folder), engine_restarts=1)
    folder.unlink()
    child(engine).kill()

    async def given_up():
        await until(lambda: "SIGKILL" not in (engine.health().reason or "SIGKILL"))
        assert not engine.health().ready
        with pytest.raises(EngineError, match="start this program anew"):
            await read(engine, [9])

    asyncio.run(given_up())
    engine.shutdown()
    assert settled(before) == before


def test_a_missing_model_is_a_checkpoint_error():
    with pytest.raises(CheckpointError, match="no-such-model"):
        AsyncLLM.from_config(config("/no-such-model"))
