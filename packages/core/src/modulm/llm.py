"""`LLM`: the offline door, with vLLM's shape. Everything runs in the calling process and thread.

Knows prompts and outputs; the work is done behind `launch.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import RequestError
from modulm.interfaces.support import Rejected, Support
from modulm.launch import Launched, Progress, launch
from modulm.outputs import RequestOutput
from modulm.plugins.bootstrap import load_records
from modulm.sampling_params import RequestOutputKind, SamplingParams
from modulm.types import Adapter, EngineStats

Messages = Sequence[dict[str, Any]]


class LLM:
    """A model loaded for offline use.

    Args:
        model: Folder, `.gguf` file, hub id, or `package://PACKAGE/FILE`.
        options: Any field of `EngineConfig` (dtype, max_model_len, max_num_seqs, quantization ...); an unknown one
            is a `ConfigError` with the nearest name.
    """

    def __init__(self, model: str, **options: Any) -> None:
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

    @property
    def model_config(self) -> ModelConfig:
        """The model as its checkpoint declares it."""
        return self._launched.resolution.model

    def get_tokenizer(self) -> Any:
        """Return the tokenizer: `encode`, `decode`, `eos_token_id` ..."""
        return self._frontend.tokenizer

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
        batch = [prompts] if _is_single(prompts) else list(prompts)
        keys = self._submit_all(batch, sampling_params, priority, lora_request)
        return self._collect(keys, use_tqdm)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        lora_request: Adapter | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several; `template_options` (tools, documents ...) go to the template."""
        conversations = [messages] if messages and isinstance(messages[0], dict) else list(messages)
        prompts = [self._frontend.render(conversation, **template_options) for conversation in conversations]
        return self._collect(self._submit_all(prompts, sampling_params, None, lora_request), use_tqdm)

    def stream(self, prompt: Any, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Yield the new part of one prompt's completions as it comes; closing the iterator aborts the request."""
        params = (sampling_params or self.get_default_sampling_params()).clone(output_kind=RequestOutputKind.DELTA)
        key = self._frontend.submit(prompt, params)
        finished = False
        try:
            while not finished:
                for output in self._frontend.poll():
                    if output.request_id == key:
                        finished = output.finished
                        yield output
        finally:
            if not finished:
                self._frontend.abort(key)

    def stream_chat(
        self, messages: Messages, sampling_params: SamplingParams | None = None, **template_options: Any
    ) -> Iterator[RequestOutput]:
        """Yield the new part of the answer to a conversation as it comes."""
        return self.stream(self._frontend.render(messages, **template_options), sampling_params)

    def explain(self) -> dict[str, Any]:
        """Return what this engine is made of: every choice with each candidate's answer, and the worker's figures."""
        choices = [
            {"family": choice.family, "chosen": choice.name, "candidates": [_answer(*entry) for entry in choice.trace]}
            for choice in self._launched.resolution.choices
        ]
        return {"choices": choices, "worker": self._launched.worker.describe()}

    def plugins_used(self) -> list[str]:
        """Return the plugin packages that were loaded, with versions; core's own parts are not counted."""
        return sorted({record.origin for record in load_records() if record.state == "loaded"})

    def stats(self) -> EngineStats:
        """Return what happened since the last call, and how things stand."""
        return self._frontend.stats()

    def shutdown(self) -> None:
        """Free the model; the object cannot be used afterwards."""
        self._frontend.shutdown()

    def _submit_all(
        self,
        prompts: list[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
        adapter: Adapter | None,
    ) -> list[str]:
        params = _per_prompt("sampling_params", sampling_params or self.get_default_sampling_params(), len(prompts))
        priorities = _per_prompt("priority", priority or 0, len(prompts))
        keys: list[str] = []
        try:
            for prompt, one, level in zip(prompts, params, priorities, strict=True):
                final = one.clone(output_kind=RequestOutputKind.FINAL_ONLY)
                keys.append(self._frontend.submit(prompt, final, priority=level, adapter=adapter))
        except RequestError as error:
            for key in keys:
                self._frontend.abort(key)
            raise RequestError(f"Prompt {len(keys)}: {error}", parameter=error.parameter) from error
        return keys

    def _collect(self, keys: list[str], use_tqdm: bool) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        wanted = set(keys)
        bar = _progress_bar(len(keys)) if use_tqdm else None
        while len(outputs) < len(keys):
            for output in self._frontend.poll():
                if output.finished and output.request_id in wanted:
                    outputs[output.request_id] = output
                    if bar is not None:
                        bar.update()
        if bar is not None:
            bar.close()
        return [outputs[key] for key in keys]


def _answer(name: str, answer: Support) -> dict[str, Any]:
    reason = answer.reason if isinstance(answer, Rejected) else answer.note
    return {"name": name, "accepted": bool(answer), "reason": reason}


def _is_single(prompts: Any) -> bool:
    """A string, a prompt dict or one list of token ids is one prompt."""
    return isinstance(prompts, str | dict) or (bool(prompts) and all(isinstance(item, int) for item in prompts))


def _per_prompt(name: str, value: Any, count: int) -> list[Any]:
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries for {count} prompts. Give one, or as many as prompts.")
    return list(value)


def _progress_bar(total: int) -> Any:
    from tqdm import tqdm  # comes with huggingface-hub

    return tqdm(total=total, desc="Prompts", unit="req")
