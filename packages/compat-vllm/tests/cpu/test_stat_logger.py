"""The example `stat_logger`: what Prometheus reads from the loggers' own port agrees with what clients got."""

import re
import socket
import time
import urllib.request


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def value(text, name):
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
    return None if found is None else float(found[1])


def test_both_styles_count_what_clients_got(serve, tiny_llama):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = serve(tiny_llama, "--num-kv-blocks=50", "--served-model-name=tiny", MY_METRICS_PORT=str(port))
    usages = [
        server.complete(model="tiny", prompt="a b c d e"[:length], temperature=0, max_tokens=count, ignore_eos=True)[
            "usage"
        ]
        for length, count in [(9, 7), (5, 3), (1, 1)]
    ]
    prompt, generated = (sum(usage[f"{kind}_tokens"] for usage in usages) for kind in ("prompt", "completion"))
    assert (prompt, generated) == (5 + 3 + 1, 7 + 3 + 1)

    ended = 'my_requests_total{engine="0",model="tiny",reason="length"}'
    deadline = time.monotonic() + 20
    while value(text := scrape(port), ended) != 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert value(text, ended) == 3 and value(text, 'my_waiting{engine="0",model="tiny"}') == 0
    assert value(text, "my_prompt_tokens_total") == prompt
    assert value(text, "my_generation_tokens_total") == generated
    assert value(text, "my_first_token_seconds_count") == 3 and value(text, "my_first_token_seconds_sum") > 0
