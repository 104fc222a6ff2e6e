"""While a plugin's code runs at the start: what it prints, how long it takes, and what it raises."""

import asyncio
import logging
import subprocess
import sys
import threading
import time

import pytest

from modulm.errors import Broken
from modulm.plugins import discovery, watch
from modulm.plugins.bootstrap import bootstrap
from modulm.plugins.records import LoadRecord
from modulm.plugins.watch import watched

GENERAL = "vllm.general_plugins"
PRINTS = """
import logging, sys
print("at import")
handler = logging.StreamHandler(sys.stdout)
kept = sys.stdout
def register():
    print("in register")
    sys.stdout.write("written\\n")
"""


def record(name="x"):
    return LoadRecord(group=GENERAL, name=name, value="m:f", distribution="dist-a", version="1.0")


def test_what_a_plugin_prints_goes_to_stderr(site, capsys):
    site.install("dist-a", {GENERAL: {"loud": "w_loud:register"}}, w_loud=PRINTS)
    bootstrap()
    print("ours")
    logged = logging.LogRecord("x", 20, "", 0, "by its handler", None, None)
    sys.modules["w_loud"].handler.handle(logged)
    print("kept", file=sys.modules["w_loud"].kept)
    out, err = capsys.readouterr()
    assert out == "ours\n"
    assert [line for line in err.splitlines() if "Plugins loaded" not in line] == [
        "at import", "in register", "written", "by its handler", "kept",
    ]  # fmt: skip


def test_other_threads_keep_their_stdout(capsys):
    done, release = threading.Event(), threading.Event()

    def other():
        with watched(record("other"), "calling it"):
            done.set()
            release.wait(5)
            print("other, watched")

    thread = threading.Thread(target=other)
    thread.start()
    done.wait(5)
    print("ours, meanwhile")
    with watched(record(), "calling it"):
        print("watched")
        with watched(record("inner"), "calling it"):
            print("inner")
    print("ours, again")
    release.set()
    thread.join()
    print("ours, at last")
    out, err = capsys.readouterr()
    assert out == "ours, meanwhile\nours, again\nours, at last\n"
    assert err == "watched\ninner\nother, watched\n"


def test_who_blocks_is_named_again_and_again(site, caplog, monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE_S", (0.05, 0.15))
    site.install("dist-a", {GENERAL: {"slow": "w_slow:register", "quick": "w_quick:f"}},
                 w_slow="import time\ndef register():\n    time.sleep(0.4)\n", w_quick="def f(): ...")  # fmt: skip
    bootstrap()
    first, second = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert first.startswith("General plugin 'slow' (dist-a 1.0): calling it has taken 0 s so far, and the start waits")
    assert f"It is at {site.folder / 'w_slow.py'}:3." in first and "MODULM_DISABLE_PLUGINS=slow" in first
    assert second.startswith("General plugin 'slow' (dist-a 1.0): calling it has taken 0 s so far")
    states = {r.name: r.state for r in discovery.records()}
    assert states == {"slow": "loaded", "quick": "loaded"}, "it is waited for"


def test_patience_is_five_and_thirty_seconds():
    assert watch.PATIENCE_S == (5.0, 30.0)


def test_watching_costs_little():
    started = time.perf_counter()
    for _ in range(100):
        with watched(record(), "calling it"):
            pass
    assert time.perf_counter() - started < 1, "some 0.2 ms each"


@pytest.mark.parametrize("error", [SystemExit(0), asyncio.CancelledError(), GeneratorExit(), MemoryError()])
def test_whatever_it_raises_is_its_failure(site, error, monkeypatch):
    site.install("dist-a", {GENERAL: {"sad": "w_sad:register"}}, w_sad="error = None\ndef register(): raise error\n")
    import w_sad

    w_sad.error = error
    bootstrap()
    (found,) = discovery.records()
    assert found.state == "broken" and f"calling it raised {type(error).__name__}" in found.reason
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    site.forget()
    with pytest.raises(Broken):
        bootstrap()


def test_an_interrupt_is_the_user_s(site):
    site.install("dist-a", {GENERAL: {"x": "w_stop:register"}}, w_stop="def register(): raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        bootstrap()


def test_native_code_and_child_processes_do_not_reach_a_pipe():
    """The command line's stdout is a pipe here: what does not come from the command goes to stderr."""
    code = (
        "import os, sys\n"
        "from modulm import cli\n"
        "def run(words):\n"
        "    os.write(1, b'native\\n')\n"
        "    os.system('echo child')\n"
        "    print('command')\n"
        "    return 0\n"
        "cli._dispatch = run\n"
        "sys.exit(cli.main())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "command\n", "native\nchild\n")
