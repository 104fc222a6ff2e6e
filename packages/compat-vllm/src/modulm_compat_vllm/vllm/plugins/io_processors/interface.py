"""IO processors: data -> prompts, outputs -> data. Registered and found here; modulm has no route that asks one yet."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Generic, TypeVar

from modulm.interfaces import io_processor

IOProcessorInput = TypeVar("IOProcessorInput")
IOProcessorOutput = TypeVar("IOProcessorOutput")


class IOProcessor(io_processor.IOProcessor, Generic[IOProcessorInput, IOProcessorOutput]):
    """Made as `Class(vllm_config, renderer)`."""

    def __init__(self, vllm_config: Any, renderer: Any = None) -> None:
        super().__init__(vllm_config, renderer)
        self.vllm_config = vllm_config

    @classmethod
    def modulm_class(cls) -> type:
        """Return a subclass that is made with modulm's configuration."""
        from modulm_compat_vllm.logits import adapted

        return adapted(cls)

    @abstractmethod
    def pre_process(self, prompt: IOProcessorInput, request_id: str | None = None, **kwargs: Any) -> Any:
        """Return one prompt or a sequence of prompts."""

    async def pre_process_async(self, prompt: IOProcessorInput, request_id: str | None = None, **kwargs: Any) -> Any:
        """Do the same in a coroutine."""
        return self.pre_process(prompt, request_id, **kwargs)

    @abstractmethod
    def post_process(
        self, model_output: Sequence[Any], request_id: str | None = None, **kwargs: Any
    ) -> IOProcessorOutput:
        """Return the answer made of all prompts' outputs."""

    async def post_process_async(
        self, model_output: AsyncGenerator[tuple[int, Any], None], request_id: str | None = None, **kwargs: Any
    ) -> IOProcessorOutput:
        """Collect (number, output) pairs, and do the same with the outputs in order."""
        outputs = sorted([each async for each in model_output], key=lambda each: each[0])
        return self.post_process([output for _, output in outputs], request_id, **kwargs)

    def merge_sampling_params(self, params: Any = None) -> Any:
        """Return the parameters to sample with."""
        from modulm.sampling_params import SamplingParams

        return params or SamplingParams()
