"""The way down: SIGTERM drains, then ends streams with an error event; a second signal ends at once. And TLS, sockets.

Signals are handed to the listener as uvicorn hands them; real ones go to real processes in the cpu tier.
"""

import socket
import threading
import time

import pytest

from modulm.errors import ConfigError
from modulm.server.listener import bound_socket
from modulm.server.options import ServerOptions


def read_until(raw, mark):
    data = b""
    while mark not in data:
        part = raw.recv(65536)
        assert part, data
        data += part
    return data


def stopping(server):
    server.uvicorn.handle_exit(15, None)
    thread = threading.Thread(target=lambda: (server.thread.join(), server.llm.shutdown()))
    thread.start()
    return thread


def test_requests_under_way_finish_and_no_new_ones_are_taken(make_server):
    server = make_server(options={"shutdown_timeout": 20})
    server.worker.pace_s = 0.01
    with server.stream(max_tokens=60) as raw:
        read_until(raw, b"data: ")
        end = stopping(server)
        time.sleep(0.3)
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", server.port))
        rest = read_until(raw, b"0\r\n\r\n").decode()
    end.join(10)
    assert not end.is_alive()
    assert '"finish_reason":"length"' in rest
    assert "error" not in rest.replace('"stop_reason"', "")


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_not_done_in_time_ends_with_an_error(make_server, stream):
    server = make_server(options={"shutdown_timeout": 0.2})
    server.worker.pace_s = 0.05
    with server.stream(max_tokens=190, stream=stream) as raw:
        if stream:
            read_until(raw, b"data: ")
        else:
            time.sleep(0.2)
        started = time.monotonic()
        end = stopping(server)
        rest = b""
        while part := raw.recv(65536):
            rest += part
    end.join(10)
    assert time.monotonic() - started < 4
    assert b'"error":{"message":"The request was ended early' in rest
    assert stream == (b"data: [DONE]" in rest)
    assert stream or rest.startswith(b"HTTP/1.1 503")


def test_a_second_signal_ends_at_once(make_server):
    server = make_server(options={"shutdown_timeout": 60})
    server.worker.pace_s = 0.1
    with server.stream(max_tokens=190) as raw:
        read_until(raw, b"data: ")
        end = stopping(server)
        time.sleep(0.3)
        assert end.is_alive()
        started = time.monotonic()
        server.uvicorn.handle_exit(15, None)
        end.join(10)
        assert not end.is_alive()
        assert time.monotonic() - started < 3


def test_idle_connections_do_not_hold_the_server_up(make_server):
    server = make_server(options={"shutdown_timeout": 60})
    with socket.create_connection(("127.0.0.1", server.port)), socket.create_connection(("127.0.0.1", server.port)):
        time.sleep(0.1)
        started = time.monotonic()
        end = stopping(server)
        end.join(10)
        assert time.monotonic() - started < 2


def test_a_taken_port_is_an_error_before_anything_is_loaded(server):
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{server.port} cannot be listened on"):
        bound_socket(ServerOptions.make(host="127.0.0.1", port=server.port))


def test_a_unix_socket_is_taken_over_and_a_file_is_not(tmp_path):
    path = tmp_path / "s"
    first = bound_socket(ServerOptions.make(uds=str(path)))
    first.close()
    again = bound_socket(ServerOptions.make(uds=str(path)))
    again.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    with pytest.raises(ConfigError, match="Address already in use"):  # not from one that serves
        bound_socket(ServerOptions.make(uds=str(path)))
    assert path.is_socket()
    client.close()
    again.close()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="--uds"):
        bound_socket(ServerOptions.make(uds=str(tmp_path / "file")))
    assert (tmp_path / "file").read_text() == "mine"


BAD = [
    {"port": 70000},
    {"port": "80"},
    {"max_body_bytes": -1},
    {"api_key": [""]},
    {"api_key": ["schlüssel"]},
    {"ssl_keyfile": "key.pem"},
    {"enable_log_requests": True, "disable_log_requests": True},
    {"ssl_cert_reqs": 7},
    {"ssl_cert_reqs": 2},
    {"ssl_ca_certs": "ca.pem"},
    {"ssl_ciphers": "HIGH"},
    {"max_concurrent_reqs_per_key": 2},
    {"middleware": [5]},
    {"default_chat_template_kwargs": "x"},
    {"allow_credentials": "yes"},
    {"hosts": "a"},
]


@pytest.mark.parametrize("options", BAD, ids=str)
def test_options_that_cannot_be_are_refused_by_name(options):
    with pytest.raises(ConfigError, match=list(options)[0]):
        ServerOptions.make(**options)


@pytest.mark.parametrize("key", [987123, ["ok", 987123], {"987123": 1}], ids=str)
def test_a_key_that_cannot_be_is_not_shown(key):
    with pytest.raises(ConfigError, match="api_key") as caught:
        ServerOptions.make(api_key=key)
    assert "987123" not in str(caught.value)
