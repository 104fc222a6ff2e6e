"""Connections that do nothing: each has had a short stream, and is kept open by client and server.

A child process: tells when all are open, waits until its standard input is closed, then says how many still are.
"""

import argparse
import http.client
import json
import socket
import sys

_PROMPT = [1000, 2000, 3000, 4000]


def connected(host: str, port: int, model: str) -> http.client.HTTPConnection:
    """Return a connection after one streamed answer, read to its end."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    body = {"model": model, "prompt": _PROMPT, "max_tokens": 1, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse().read()
    assert answer.rstrip().endswith(b"[DONE]"), answer
    return connection


def is_open(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has neither closed it nor said anything more."""
    if connection.sock is None:
        return False
    connection.sock.setblocking(False)
    try:
        connection.sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    return False


def main() -> None:
    """Open, wait, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (("host", str), ("port", int), ("model", str), ("count", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    args = parser.parse_args()
    connections = [connected(args.host, args.port, args.model) for _ in range(args.count)]
    print("open", flush=True)
    sys.stdin.read()
    print(sum(map(is_open, connections)), flush=True)


if __name__ == "__main__":
    main()
