"""The name that parsers write in annotations for a request of the other API; modulm makes none."""

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest


class ResponsesRequest(ChatCompletionRequest):
    """A request to /v1/responses, which modulm does not serve."""
