"""A real server on loopback over a real front end and engine, with a worker that recites: no tensors, no torch.

Whatever the prompt, the k-th token after it is the k-th of TEXT; token t at position p of a prompt has the
log-probability -p. `worker.pace_s` is how long a step takes.
"""

import http.client
import json
import logging
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import tokenizers
import uvloop
from tokenizers import decoders, models, pre_tokenizers, trainers

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import EngineError
from modulm.interfaces.checkpoint import TokenizerData
from modulm.interfaces.executor import Executor
from modulm.types import KVGroup, KVLayout, SampledTokens, StepResult, TokenLogprobs

TEXT = "The quick brown fox jumps over the lazy dog. Zwölf Boxkämpfer jagen Viktor quer über den Deich 😊. " * 4
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MAX_MODEL_LEN = 200


def tokenizer_data():
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([TEXT] * 3, trainer)
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    return TokenizerData(tokenizer_json=inner.to_str(), config=config, chat_template=CHAT)


class Reciter(Executor):
    """The worker. `fail` makes the next step raise."""

    def __init__(self, script, num_blocks=400):
        self.script = script
        self.pace_s = 0.0
        self.fail = None
        self.lengths = {}
        self._num_blocks = num_blocks

    def kv_layout(self):
        return KVLayout(block_size=4, num_blocks=self._num_blocks, groups=(KVGroup(layer_names=("l",)),))

    def shutdown(self):
        pass

    def execute(self, plan):
        if plan.scheduled:
            time.sleep(self.pace_s)
        if self.fail:
            raise EngineError(self.fail)
        for request_id in plan.forget:
            self.lengths.pop(request_id, None)
        for new in plan.new:
            prompt, length = new.request.prompt_token_ids, len(new.token_ids)
            self.lengths[new.request.request_id] = [new.request, length - len(prompt)]
        return StepResult(sampled=[self._sample(each) for each in plan.scheduled])

    def _sample(self, scheduled):
        held = self.lengths[scheduled.request_id]
        request, num_output = held
        answer = SampledTokens(request_id=scheduled.request_id)
        if scheduled.samples:
            token = self.script[num_output % len(self.script)]
            answer.token_ids = [token]
            held[1] += 1
            if request.params.logprobs is not None:
                answer.logprobs = [self._logprobs(token, -float(num_output + 1), request.params.logprobs)]
        if request.params.prompt_logprobs is not None:
            prompt = request.prompt_token_ids
            end = min(scheduled.start + scheduled.num_tokens, len(prompt) - 1)
            answer.prompt_logprobs = [
                self._logprobs(prompt[p + 1], -float(p + 1), request.params.prompt_logprobs)
                for p in range(scheduled.start, end)
            ]
        return answer

    def _logprobs(self, token, logprob, k):
        """The chosen token is the likeliest; the others are impossible."""
        others = [i for i in range(2, 2 + k) if i != token][: max(k - 1, 0)]
        tops, values = [token, *others][:k], [logprob, *[-float("inf")] * len(others)][:k]
        return TokenLogprobs(token_id=token, logprob=logprob, rank=1, top_ids=tops, top_logprobs=values)


class Server:
    """A server in a thread, with what a test needs of it."""

    def __init__(self, options, loggers=(), grammars=None, **config):
        from modulm.async_llm import AsyncLLM
        from modulm.engine.loop import Engine
        from modulm.frontend.stat_loggers import StatLoggers, logged_config
        from modulm.frontend.tokenizer import Tokenizer
        from modulm.launch import Serving, build_frontend
        from modulm.server.app import build_app
        from modulm.server.listener import Listener, bound_socket, uvicorn_config
        from modulm.server.options import ServerOptions
        from modulm.transport.codec import Ready, Resolved
        from modulm.transport.inprocess import ThreadClient

        data = tokenizer_data()
        self.tokenizer = Tokenizer.from_data(data)
        self.text_ids = self.tokenizer.encode(TEXT)
        self.worker = Reciter(self.text_ids, config.pop("num_kv_blocks", 400))
        config = EngineConfig(model="reciter", **config)
        hf = {"vocab_size": self.tokenizer.vocab_size}
        model = ModelConfig(name="reciter", hf=hf, architectures=[], max_model_len=MAX_MODEL_LEN)
        self.engine = Engine(config, self.worker, max_model_len=MAX_MODEL_LEN, grammars=grammars)
        client = ThreadClient(self.engine)
        resolved = Resolved(config=config, model=model, generation_config={}, tokenizer=data)
        ready = Ready(explained={"choices": []}, plugins=[])
        frontend = build_frontend(resolved, self.tokenizer, client)
        self.rejections = []
        serving = Serving(frontend=frontend, client=client, config=resolved.config, model=resolved.model, ready=ready)
        stat_loggers = StatLoggers(logged_config(config, model), enable_default_loggers=False)
        stat_loggers.record_admission_rejection = self.rejections.append
        self.llm = AsyncLLM(serving, stat_loggers)
        self.options = ServerOptions.make(host="127.0.0.1", port=0, disable_uvicorn_access_log=True, **options)
        self.app = build_app(self.llm, self.options, stat_loggers=loggers)
        bound = bound_socket(self.options)
        self.port = bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.uvicorn = Listener(uvicorn_config(self.app, self.options), self.llm, self.options.shutdown_timeout)
        logging.getLogger("uvicorn.access").disabled = True
        self.thread = threading.Thread(target=lambda: uvloop.run(self.uvicorn.serve(sockets=[bound])))
        self.thread.start()
        wait_for(lambda: self.uvicorn.started)

    def stop(self):
        self.worker.pace_s = 0.0
        self.uvicorn.handle_exit(15, None)
        self.thread.join()
        self.llm.shutdown()

    def ask(self, path, body=None, headers=(), method=None):
        """Return (status, headers, body as JSON or bytes)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method or ("GET" if data is None else "POST"), path, data, dict(headers))
        answer = connection.getresponse()
        raw = answer.read()
        connection.close()
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.status, answer.headers, json.loads(raw) if is_json and raw else raw

    def complete(self, **body):
        """POST /v1/completions and return the answer, which must be a 200."""
        status, _, answer = self.ask("/v1/completions", body)
        assert status == 200, answer
        return events(answer) if body.get("stream") else answer

    def chat(self, **body):
        body = {"messages": [{"role": "user", "content": "hi"}], **body}
        status, _, answer = self.ask("/v1/chat/completions", body)
        assert status == 200, answer
        return events(answer) if body.get("stream") else answer

    @contextmanager
    def stream(self, **body):
        """A raw socket on which a completion's events come."""
        data = json.dumps({"prompt": "a", "stream": True, **body}).encode()
        with socket.create_connection(("127.0.0.1", self.port)) as raw:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
            raw.sendall(head.encode() + data)
            yield raw

    def text(self, num_tokens):
        """What the worker recites in so many tokens."""
        return self.tokenizer.decode(self.text_ids[:num_tokens])

    @property
    def num_running(self):
        return len(self.engine._scheduler.running) + len(self.engine._scheduler.waiting)

    def is_idle(self):
        return not (self.num_running or self.llm._streams.num_open or self.app.state.serving.admission.num_open)


def events(raw):
    """Return the events of a stream, which must end with [DONE]."""
    parts = raw.decode().split("\n\n")
    assert parts.pop() == ""
    assert parts.pop() == "data: [DONE]"
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def wait_for(condition, seconds=10.0):
    """Wait until something is so; fail when it does not come about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def make_server():
    """A factory of servers, stopped after the module."""
    made = []

    def make(*, options=None, loggers=(), **config):
        made.append(Server(options or {}, loggers, **{"max_num_seqs": 8, **config}))
        return made[-1]

    yield make
    for server in made:
        if server.thread.is_alive():
            server.stop()


@pytest.fixture(scope="module")
def server(make_server):
    return make_server()
