"""IO processors (group `vllm.io_processor_plugins`): turn arbitrary data into prompts and outputs into arbitrary data.

An entry point of the group is a function that returns the class path of an `IOProcessor`, or None to opt out.
`load_io_processor` of `plugins/hooks.py` finds and checks one by name, in whatever process asks; nothing in core does
so yet.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class IOProcessor(ABC):
    """Constructed as `Class(config, renderer)`."""

    def __init__(self, config: Any, renderer: Any) -> None:
        self.config = config

    def parse_data(self, data: object) -> Any:
        """Check and convert the request's `data`; raise `ValueError` to refuse it."""
        raise NotImplementedError

    @abstractmethod
    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any:
        """Return one prompt or a sequence of prompts."""

    @abstractmethod
    def post_process(self, model_output: Sequence[Any], request_id: str | None = None, **kwargs: Any) -> Any:
        """Return the answer made of all prompts' outputs."""
