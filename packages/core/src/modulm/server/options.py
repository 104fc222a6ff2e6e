"""What the server itself can be told, under vLLM's names where the meaning is vLLM's. The engine's are in `config.py`.

Each field is an option of `modulm serve` (`--` and dashes for underscores), its text the help. Data and checks only.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any

from modulm.errors import ConfigError, did_you_mean


def _option(text: str, default: Any = None, **more: Any) -> Any:
    if isinstance(default, list | dict):
        kept = default
        return field(default_factory=lambda: kept.copy(), metadata={"help": text, **more})
    return field(default=default, metadata={"help": text, **more})


@dataclass(kw_only=True)
class ServerOptions:
    """Options of one HTTP server. Built through `make`; raises `ConfigError` for what cannot be."""

    host: str = _option("address to listen on", "0.0.0.0")
    port: int = _option("port to listen on; 0 takes a free one", 8000)
    uds: str | None = _option("listen on this Unix socket instead of host and port")
    root_path: str = _option("prefix under which a proxy shows this server", "")
    served_model_name: list[str] = _option("names that requests may give; answers report the first", [], many=True)
    api_key: list[str] = _option(
        "a key that requests must bear; may be repeated; environment: VLLM_API_KEY, MODULM_API_KEY", []
    )
    max_num_queued_reqs: int = _option(
        "sequences that may wait beyond --max-num-seqs before new requests get 429; 0 is any number", 2048
    )
    max_concurrent_reqs_per_key: int = _option("requests that one API key may have under way; 0 is any number", 0)
    max_body_bytes: int = _option("largest request body", 32 * 1024 * 1024)
    shutdown_timeout: float = _option("seconds that requests may go on for after SIGTERM", 30.0)
    allowed_origins: list[str] = _option("origins that browsers may call from (CORS)", ["*"], many=True)
    allowed_methods: list[str] = _option("methods that browsers may use", ["*"], many=True)
    allowed_headers: list[str] = _option("headers that browsers may send", ["*"], many=True)
    allow_credentials: bool = _option("whether browsers may send cookies", False)
    ssl_keyfile: str | None = _option("the TLS key's file")
    ssl_certfile: str | None = _option("the TLS certificate's file")
    ssl_ca_certs: str | None = _option("file of the authorities that client certificates are checked against")
    ssl_cert_reqs: int = _option("0: no client certificate, 1: checked if given, 2: required (ssl.VerifyMode)", 0)
    ssl_ciphers: str | None = _option("TLS ciphers in OpenSSL's form")
    middleware: list[str] = _option("module.Class or module:Class (ASGI), or a function for HTTP; may be repeated", [])
    enable_request_id_headers: bool = _option("answer with X-Request-Id", False)
    response_role: str = _option("role of answers in chat", "assistant")
    default_chat_template_kwargs: dict[str, Any] = _option("JSON object of names for every chat template", {})
    trust_request_chat_template: bool = _option("let requests bring a chat template of their own", False)
    enable_auto_tool_choice: bool = _option("let the model call tools; needs --tool-call-parser", False)
    exclude_tools_when_tool_choice_none: bool = _option("show no tools to the model where it may call none", False)
    return_tokens_as_token_ids: bool = _option("write tokens as 'token_id:N' in log-probabilities", False)
    enable_prompt_tokens_details: bool = _option("tell in the usage how many prompt tokens were cached", False)
    enable_force_include_usage: bool = _option("end every stream with its usage", False)
    disable_fastapi_docs: bool = _option("no /docs, /redoc and /openapi.json", False)
    enable_log_requests: bool = _option("log each request's id, parameters and size", False)
    disable_log_requests: bool = _option("log no requests: the default, named as old scripts name it", False)
    uvicorn_log_level: str = _option("critical, error, warning, info, debug or trace", "info")
    disable_uvicorn_access_log: bool = _option("no line per HTTP request", False)
    log_config: str | None = _option("JSON or YAML file for logging.config.dictConfig")
    disable_log_stats: bool = _option("no line of statistics every ten seconds", False)
    otlp_traces_endpoint: str | None = _option("OpenTelemetry collector that gets a span of every request")

    @classmethod
    def make(cls, **options: Any) -> "ServerOptions":
        """Build from keyword options; an unknown one is a `ConfigError` with the nearest name."""
        known = cls.__dataclass_fields__
        for name in options:
            if name not in known:
                raise ConfigError(f"Server option {name!r} is unknown.{did_you_mean(name, known)}")
        return cls(**options)

    def __post_init__(self) -> None:
        for name in ("VLLM_API_KEY", "MODULM_API_KEY"):
            if not self.api_key and os.environ.get(name):
                self.api_key = [os.environ[name]]
        for spec in dataclasses.fields(self):
            self._check_kind(spec.name, spec.type, getattr(self, spec.name))
        if self.port > 65535:
            raise ConfigError(f"port={self.port!r} is refused: ports end at 65535.")
        if any(not key or not key.isascii() for key in self.api_key):
            raise ConfigError("api_key is refused: a key must be of ASCII characters, and at least one.")
        for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers"):
            if getattr(self, name) and not self.ssl_certfile:
                raise ConfigError(f"{name} is refused without ssl_certfile: there is no TLS without a certificate.")
        if self.max_concurrent_reqs_per_key and not self.api_key:
            raise ConfigError("max_concurrent_reqs_per_key is refused without api_key: it limits requests of a key.")
        if self.enable_log_requests and self.disable_log_requests:
            raise ConfigError("enable_log_requests and disable_log_requests are refused together. Leave one out.")
        if self.ssl_cert_reqs not in (0, 1, 2):
            raise ConfigError(f"ssl_cert_reqs={self.ssl_cert_reqs!r} is refused: it must be 0, 1 or 2.")

    def _check_kind(self, name: str, kind: Any, value: Any) -> None:
        """Values may come from a file, where anything can stand."""
        if kind == list[str] and isinstance(value, str):
            setattr(self, name, [value])
        elif kind in (int, float):
            number = (int, float) if kind is float else int
            if isinstance(value, bool) or not isinstance(value, number) or not 0 <= value < 2**63:
                raise ConfigError(f"{name}={value!r} is refused: it must be a number of at least 0.")
        elif kind == list[str]:
            if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
                shown = name if name == "api_key" else f"{name}={value!r}"
                raise ConfigError(f"{shown} is refused: it must be a list of strings.")
        elif kind == dict[str, Any]:
            if not isinstance(value, dict):
                raise ConfigError(f"{name}={value!r} is refused: it must be a JSON object.")
        elif not isinstance(value, kind):
            raise ConfigError(f"{name}={value!r} is refused: it must be {'true or false' if kind is bool else 'text'}.")
