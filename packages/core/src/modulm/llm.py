"""`LLM`: the offline door, with vLLM's shape. Everything runs in the calling process, and in whichever thread waits.

Knows prompts and outputs; the work is done behind `launch.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from os import PathLike
from typing import Any

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import EngineError, RequestError
from modulm.frontend.mailboxes import Mailboxes
from modulm.launch import Launched, Progress, explain, explained, launch
from modulm.outputs import RequestOutput
from modulm.plugins.bootstrap import load_records
from modulm.sampling_params import RequestOutputKind, SamplingParams
from modulm.types import Adapter, EngineStats

Messages = Sequence[dict[str, Any]]


class LLM:
    """A model loaded for offline use. Calls may overlap: streams side by side, from one thread or several.

    Args:
        model: Folder, `.gguf` file, hub id, or `package://PACKAGE/FILE`.
        options: Any field of `EngineConfig` (dtype, max_model_len, max_num_seqs, quantization ...); an unknown one
            is a `ConfigError` with the nearest name.
    """

    def __init__(self, model: str | PathLike[str], **options: Any) -> None:
        self._start(EngineConfig.make(model=model, **options), None)

    @classmethod
    def from_config(cls, config: EngineConfig, *, progress: Progress | None = None) -> "LLM":
        """Build from a ready configuration; `progress(done, total)` counts weights while they load."""
        llm = cls.__new__(cls)
        llm._start(config, progress)
        return llm

    def _start(self, config: EngineConfig, progress: Progress | None) -> None:
        self.config = config
        self._launched: Launched = launch(config, progress)
        self._frontend = self._launched.frontend
        self._mailboxes = Mailboxes(self._frontend)
        self._is_shut_down = False

    @property
    def model_config(self) -> ModelConfig:
        """The model as its checkpoint declares it."""
        return self._launched.resolution.model

    def get_tokenizer(self) -> Any:
        """Return the tokenizer: `encode`, `decode`, `eos_token_id` ..."""
        tokenizer = self._frontend.tokenizer
        _ = tokenizer.vocab_size  # whoever asks wants it whole: it may be pickled
        return tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters that the checkpoint's generation config recommends."""
        return self._frontend.default_params()

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        lora_request: Adapter | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts (strings, token id lists, or vLLM's prompt dicts); outputs come in the prompts' order.

        Raises `RequestError` when any of them is refused; none has run then. A request that fails later ends with
        `error` set, and the others go on.
        """
        return self._run(_batch(prompts), sampling_params, priority, lora_request, use_tqdm)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        lora_request: Adapter | None = None,
        priority: Sequence[int] | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several; `template_options` (tools, documents ...) go to the template."""
        prompts = [self._frontend.render(each, **template_options) for each in _conversations(messages)]
        return self._run(prompts, sampling_params, priority, lora_request, use_tqdm)

    def stream(self, prompt: Any, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Yield the new part of one prompt's completions as it comes; closing the iterator aborts the request."""
        (params,) = self._params(sampling_params, 1)
        label = self._open(prompt, params.clone(output_kind=RequestOutputKind.DELTA))
        finished = False
        try:
            while not finished:
                for output in self._mailboxes.wait([label]):
                    finished = output.finished
                    yield output
        finally:
            self._mailboxes.close(label)

    def stream_chat(
        self, messages: Messages, sampling_params: SamplingParams | None = None, **template_options: Any
    ) -> Iterator[RequestOutput]:
        """Yield the new part of the answer to a conversation as it comes."""
        return self.stream(self._frontend.render(messages, **template_options), sampling_params)

    def explain(self) -> dict[str, Any]:
        """Return what this engine is made of: every choice with each candidate's answer, and the worker's figures."""
        made = explain(self._launched.resolution, self._launched.worker)
        return {**made, "choices": made["choices"] + explained(self._frontend.parsers.choices)}

    def plugins_used(self) -> list[str]:
        """Return the plugin packages that were loaded, with versions; core's own parts are not counted."""
        return sorted({record.origin for record in load_records() if record.state == "loaded"})

    def stats(self) -> EngineStats:
        """Return what happened since the last call, and how things stand."""
        return self._frontend.stats()

    def shutdown(self) -> None:
        """Free the model; the object cannot be used afterwards. Streams that are open end with "abort"."""
        self._is_shut_down = True
        self._frontend.shutdown()

    def _run(
        self,
        prompts: list[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
        adapter: Adapter | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        """Submit all and wait for all. However this is left, none of them stays behind in the engine."""
        params = self._params(sampling_params, len(prompts))
        priorities = _per_prompt("priority", 0 if priority is None else priority, len(prompts))
        if adapter is not None:
            raise RequestError(
                f"lora_request={adapter!r} is refused: this engine serves no adapters. Leave it out, or merge the "
                "adapter into the model.",
                parameter="lora_request",
            )
        labels: list[str] = []
        try:
            for prompt, one, level in zip(prompts, params, priorities, strict=True):
                labels.append(self._open_numbered(len(labels), prompt, one, level))
            return self._collect(labels, use_tqdm)
        finally:
            for label in labels:
                self._mailboxes.close(label)

    def _open_numbered(self, number: int, prompt: Any, params: SamplingParams, priority: int) -> str:
        try:
            return self._open(prompt, params.clone(output_kind=RequestOutputKind.FINAL_ONLY), priority=priority)
        except RequestError as error:
            raise RequestError(f"Prompt {number}: {error}", parameter=error.parameter) from error

    def _open(self, prompt: Any, params: SamplingParams, **options: Any) -> str:
        if self._is_shut_down:
            raise EngineError("This LLM has been shut down and its model is gone: it takes no prompts. Make a new LLM.")
        return self._mailboxes.open(prompt, params, **options)

    def _collect(self, labels: list[str], use_tqdm: bool) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        missing = dict.fromkeys(labels)
        bar = None
        if use_tqdm:
            from tqdm import tqdm  # comes with huggingface-hub

            bar = tqdm(total=len(labels), desc="Prompts", unit="req")
        while missing:
            for output in self._mailboxes.wait(missing):
                outputs[output.request_id] = output
                del missing[output.request_id]
                if bar is not None:
                    bar.update()
        if bar is not None:
            bar.close()
        return [outputs[label] for label in labels]

    def _params(self, asked: Any, count: int) -> list[SamplingParams]:
        params = _per_prompt("sampling_params", self.get_default_sampling_params() if asked is None else asked, count)
        for one in params:
            if not isinstance(one, SamplingParams):
                raise RequestError(
                    f"sampling_params={asked!r} is refused: a {type(one).__name__} is no SamplingParams. "
                    "Give one SamplingParams for all prompts, or a list with one for each.",
                    parameter="sampling_params",
                )
        return params


def _batch(prompts: Any) -> list[Any]:
    """One prompt (a string, a prompt dict, a row of token ids) or any iterable of prompts -> a list of prompts."""
    if isinstance(prompts, str | bytes | Mapping):
        return [prompts]
    if hasattr(prompts, "tolist"):  # numpy, torch
        prompts = prompts.tolist()
    if not isinstance(prompts, Iterable):
        raise RequestError(
            f"prompts={prompts!r} is refused: a {type(prompts).__name__} is neither a prompt nor a list of prompts. "
            "Send strings, lists of token ids, {'prompt': text} or {'prompt_token_ids': ids}.",
            parameter="prompt",
        )
    batch = list(prompts)
    return [batch] if batch and all(isinstance(item, Integral) for item in batch) else batch


def _conversations(messages: Any) -> list[Any]:
    """One conversation or several. What is neither goes on as one, for the front end to say what is wrong with it."""
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes | Mapping):
        return [messages]
    batch = list(messages)
    several = all(isinstance(each, Sequence) and not isinstance(each, str | bytes) for each in batch)
    return batch if several else [batch]


def _per_prompt(name: str, value: Any, count: int) -> list[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * count
    if len(value) != count:
        raise RequestError(
            f"{name} has {len(value)} entries for {count} prompts. Give one for all, or as many as prompts.",
            parameter=name,
        )
    return list(value)
