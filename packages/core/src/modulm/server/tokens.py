"""POST /tokenize and /detokenize: the model's tokenizer, in vLLM's shape. Work is done in threads."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from modulm.errors import RequestError
from modulm.server.body import read_body
from modulm.server.chat import rendered
from modulm.server.completions import tokenized
from modulm.server.schema.tokens import DetokenizeRequest, Text, TokenizeRequest, Tokens
from modulm.server.serving import Serving, serving_of


def json_response(body: Any) -> Response:
    """Return a struct or plain data as a response."""
    return Response(msgspec.json.encode(body), media_type="application/json")


async def tokenize(request: Request) -> Response:
    """Answer with the ids of a text or of a conversation."""
    serving = serving_of(request)
    body = await read_body(request, TokenizeRequest)
    serving.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Send exactly one of 'prompt' and 'messages'.", parameter="prompt")
    return json_response(await asyncio.to_thread(_tokenize, serving, body))


def _tokenize(serving: Serving, body: TokenizeRequest) -> Tokens:
    if body.prompt is not None:
        (prompt,) = tokenized(serving, [body.prompt], body.add_special_tokens is not False)
    else:
        (prompt,) = rendered(serving, body)
    ids = prompt["prompt_token_ids"]
    tokens = Tokens(count=len(ids), max_model_len=serving.llm.model_config.max_model_len, tokens=ids)
    if body.return_token_strs:
        tokens.token_strs = [serving.llm.tokenizer.id_to_piece(token_id) or "" for token_id in ids]
    return tokens


async def detokenize(request: Request) -> Response:
    """Answer with the text of ids."""
    serving = serving_of(request)
    body = await read_body(request, DetokenizeRequest)
    serving.check_model(body.model)
    vocab_size = serving.llm.model_config.vocab_size
    if body.tokens and not 0 <= min(body.tokens) <= max(body.tokens) < vocab_size:
        raise RequestError(
            f"tokens holds ids that this model does not have; its ids go from 0 to {vocab_size - 1}.",
            parameter="tokens",
        )
    text = await asyncio.to_thread(serving.llm.tokenizer.decode, body.tokens, False)
    return json_response(Text(prompt=text))
