"""Models, health, tokens, keys, CORS, request ids, metrics: what is asked beside generating."""

import time

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from modulm.outputs import Health


def test_models_have_all_their_names(make_server):
    server = make_server(options={"served_model_name": ["one", "org/two"]})
    listed = server.ask("/v1/models")[2]["data"]
    assert [(model["id"], model["max_model_len"], model["root"]) for model in listed] == [
        ("one", 200, "reciter"),
        ("org/two", 200, "reciter"),
    ]
    assert server.ask("/v1/models/org/two")[2] == listed[1]
    assert server.complete(prompt="a", max_tokens=1, model="org/two")["model"] == "one"


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping", "/version", "/load", "/v1/plugins", "/openapi.json"])
def test_routes_that_say_how_things_are(server, path):
    assert server.ask(path)[0] == 200
    assert server.ask("/ping", method="POST")[0] == 200


def test_the_load_is_the_number_of_requests_under_way(server, monkeypatch):
    assert server.ask("/load")[2] == {"server_load": 0}
    monkeypatch.setattr(server.llm, "plugin_records", lambda: [{"name": "p"}])
    assert server.ask("/v1/plugins")[2]["data"] == [{"name": "p"}]


def test_an_engine_that_is_away_is_not_ready_and_one_that_is_gone_not_healthy(server, monkeypatch):
    monkeypatch.setattr(server.llm, "health", lambda: Health(alive=True, ready=False, reason="It restarts."))
    status, headers, answer = server.ask("/ready")
    assert (status, answer["error"]["message"], int(headers["retry-after"]) > 0) == (503, "It restarts.", True)
    assert server.ask("/health")[0] == 200
    monkeypatch.setattr(server.llm, "health", lambda: Health(alive=False, ready=False, reason="It is gone."))
    assert server.ask("/health")[0] == 503


def test_text_becomes_tokens_and_back(server):
    text = "The fox said: Zwölf!"
    tokens = server.ask("/tokenize", {"prompt": text, "return_token_strs": True})[2]
    assert tokens["tokens"] == server.tokenizer.encode(text)
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert tokens["max_model_len"] == 200
    assert server.ask("/detokenize", {"tokens": tokens["tokens"]})[2] == {"prompt": text}
    chat = server.ask("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})[2]
    assert chat["tokens"] == server.tokenizer.encode("<|user|>hi\n<|assistant|>")
    assert server.ask("/detokenize", {"tokens": []})[2] == {"prompt": ""}


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def locked(make_server):
    return make_server(options={"api_key": ["alpha", "beta"], "root_path": "/under"})


OPEN = {"/health", "/ready", "/ping"}


def routes(app):
    found = []
    for route in app.routes:
        path = getattr(route, "path", None)
        for method in sorted(getattr(route, "methods", None) or []):
            found.append((method, path.replace("{model:path}", "x")))
    return found


def test_every_route_but_health_asks_for_a_key(locked):
    assert len(routes(locked.app)) > 15
    for method, path in [*routes(locked.app), ("GET", "/no/such/route"), ("OPTIONS", "/v1/models")]:
        status, headers, _ = locked.ask(path, b"{}" if method == "POST" else None, method=method)
        assert (status == 401) == (path not in OPEN), (method, path, status)
        if status == 401:
            assert headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Bearer alph", "Bearer alphaa", "Basic alpha", "alpha"])
def test_a_wrong_key_is_refused(locked, value):
    status, _, answer = locked.ask("/v1/models", headers={"Authorization": value})
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("value", ["Bearer alpha", "bearer beta", "BEARER  beta "])
def test_a_right_key_opens(locked, value):
    assert locked.ask("/v1/models", headers={"Authorization": value})[0] == 200


def test_keys_come_from_the_environment_too(monkeypatch):
    from modulm.server.options import ServerOptions

    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert ServerOptions.make().api_key == ["secret"]
    assert ServerOptions.make(api_key=["other"]).api_key == ["other"]


def test_browsers_may_ask_beforehand_without_a_key(locked):
    headers = {"Origin": "http://x", "Access-Control-Request-Method": "POST"}
    status, headers, _ = locked.ask("/v1/completions", headers=headers, method="OPTIONS")
    assert (status, headers["access-control-allow-origin"]) == (200, "*")
    status, headers, _ = locked.ask("/v1/models", headers={"Origin": "http://x"})
    assert (status, headers["access-control-allow-origin"]) == (401, "*")


@pytest.fixture(scope="module")
def dressed(make_server):
    class Logger:
        def routes(self):
            async def metrics(request):
                return PlainTextResponse("vllm:x 1")

            return [Route("/metrics", metrics)]

    options = {"enable_request_id_headers": True, "disable_fastapi_docs": True, "middleware": ["wsgiref.types:tell"]}
    import wsgiref.types

    async def tell(request, call_next):
        answer = await call_next(request)
        tell.told.append(answer.status_code)
        answer.headers["x-told"] = "yes"
        return answer

    tell.told = []
    wsgiref.types.tell = tell
    yield make_server(options=options, loggers=[Logger()])
    del wsgiref.types.tell


def test_request_ids_come_back(dressed):
    assert dressed.ask("/health", headers={"X-Request-Id": "abc"})[1]["x-request-id"] == "abc"
    assert len(dressed.ask("/health")[1]["x-request-id"]) == 32


def test_a_function_of_the_users_is_middleware(dressed):
    assert dressed.ask("/health")[1]["x-told"] == "yes"
    assert dressed.complete(prompt="a", max_tokens=3, stream=True)


def test_middleware_gets_a_response_though_the_client_has_gone(dressed):
    import wsgiref.types

    told = wsgiref.types.tell.told
    dressed.worker.pace_s = 0.01
    with dressed.stream(max_tokens=190, stream=False):
        wait_for(lambda: dressed.num_running)
    wait_for(lambda: told and told[-1] == 499)
    wait_for(dressed.is_idle)
    dressed.worker.pace_s = 0.0


def test_a_stat_logger_may_offer_metrics(dressed, server):
    assert dressed.ask("/metrics")[2] == b"vllm:x 1"
    status, _, answer = server.ask("/metrics")
    assert status == 501
    assert "pip install modulm-metrics-prometheus" in answer["error"]["message"]


def test_documents_may_be_turned_off(dressed, server):
    assert dressed.ask("/openapi.json")[0] == 404
    assert server.ask("/docs")[0] == 200


def test_the_openapi_document_has_a_schema_for_every_body(server):
    document = server.ask("/openapi.json")[2]
    schemas = document["components"]["schemas"]
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        operation = document["paths"][path]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert schemas[body]["properties"]
        assert operation["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")
    assert set(schemas["ErrorDetail"]["properties"]) == {"message", "type", "param", "code"}
