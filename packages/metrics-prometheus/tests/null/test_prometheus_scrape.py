"""A scrape over HTTP, as Prometheus makes it and as its own tool reads it."""

import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient

REMARKS = (
    r"\S+ metric names should not contain ':'",
    r'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix',
    "",
)
"""What vLLM's names make promtool remark; see the README."""

OLD_SERVER = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
NEW_SERVER = OLD_SERVER.replace("1.0.0;q=0.5", "1.0.0;escaping=allow-utf-8;q=0.6")


@pytest.fixture
def client(full):
    return TestClient(Starlette(routes=full.routes()))


@pytest.mark.parametrize("accept", [None, OLD_SERVER, NEW_SERVER, "*/*"])
def test_names_have_their_colons_whoever_asks(client, accept):
    answer = client.get("/metrics", headers={"accept": accept} if accept else {})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"vllm:num_requests_running", "vllm:generation_tokens", "modulm:plugin_load_seconds"} <= names
    assert [name for name in names if not name.startswith(("vllm:", "modulm:"))] == []


def test_promtool_finds_nothing_but_what_vllms_names_bring(client):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    told = subprocess.run(
        [promtool, "check", "metrics"], input=client.get("/metrics").text, capture_output=True, text=True, check=False
    )
    lines = (told.stdout + told.stderr).splitlines()
    unknown = [line for line in lines if not any(re.fullmatch(remark, line) for remark in REMARKS)]
    assert unknown == [] and told.returncode in (0, 3)
