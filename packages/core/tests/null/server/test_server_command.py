"""Options of `modulm serve` that are neither the server's nor the engine's, from the command line and from a file."""

import argparse

import pytest

from modulm.cli import serve
from modulm.errors import ConfigError


def run(*words):
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return serve.run(parser.parse_args(["nowhere", "--port=0", *words]))


BAD = [
    ("engine-restarts: many", "engine_restarts='many' is refused"),
    ("engine-restarts: -1", "engine_restarts=-1 is refused"),
    ("engine-restarts: true", "engine_restarts=True is refused"),
    ("in-process: 'no'", "in_process='no' is refused"),
    ("in-process: true\nengine-restarts: 2", "engine_restarts is refused with in_process"),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_a_file_cannot_say_what_the_command_line_cannot(tmp_path, text, said):
    file = tmp_path / "options.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        run(f"--config={file}")


@pytest.mark.parametrize("words", [["--api-key", "[987123"], ["--api-key", "[987123]"], ["--api-key", "[{987123}]"]])
def test_a_key_that_cannot_be_read_is_not_shown(words):
    with pytest.raises(ConfigError, match="api_key") as caught:
        run(*words)
    assert "987123" not in str(caught.value)


def test_calls_that_nothing_would_find_are_refused_at_the_start():
    with pytest.raises(ConfigError, match="enable_auto_tool_choice is refused: nothing would find the calls"):
        run("--enable-auto-tool-choice")
