"""What the routes of one server share: the engine's door, options, names and counts. Kept as `app.state.serving`."""

import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.requests import Request

from modulm.server.admission import Admission
from modulm.server.errors import Refused
from modulm.server.options import ServerOptions

if TYPE_CHECKING:
    from modulm.async_llm import AsyncLLM


class Serving:
    """One engine behind one HTTP server.

    Attributes:
        model_names: What requests may call the model; answers report the first.
        default_params: Sampling parameters that the checkpoint recommends.
        created: When the server started, in seconds since 1970.
    """

    def __init__(self, llm: "AsyncLLM", options: ServerOptions) -> None:
        self.llm = llm
        self.options = options
        self.model_names = options.served_model_name or [llm.config.model]
        self.default_params = llm.default_params()
        self.created = int(time.time())
        self.admission = Admission(
            llm.config.max_num_seqs,
            options.max_num_queued_reqs,
            options.max_concurrent_reqs_per_key,
            on_rejection=llm.stat_loggers.record_admission_rejection,
        )

    @property
    def model_name(self) -> str:
        """The name that answers report."""
        return self.model_names[0]

    def check_model(self, name: str | None) -> None:
        """Refuse names that are not served; no name means the model that is."""
        if name is not None and name not in self.model_names:
            there = ", ".join(map(repr, self.model_names))
            raise Refused(
                HTTPStatus.NOT_FOUND,
                f"The model {name!r:.200} does not exist here. This server has: {there}.",
                param="model",
                code="model_not_found",
            )


def serving_of(request: Request) -> Serving:
    """Return the server that a request came to."""
    serving: Serving = request.app.state.serving
    return serving
