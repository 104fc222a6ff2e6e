"""Which group loads in which process: one distribution with an entry point in every group, which takes notes.

Every kind of process that there is runs with each implementation of it chosen, so that what is not in the notes was
not loaded. What is expected is `PROCESSES`, which docs/extend/processes.md shows.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from safetensors.numpy import save_file

from modulm.plugins.families import FAMILIES, GENERAL, HOOKS, NOUNS, PROCESS_KINDS, PROCESSES

OPTIONS = {"load_format": "witness", "num_kv_blocks": 40, "max_num_seqs": 4, "max_model_len": 32}
OPTIONS |= {"tool_call_parser": "witness", "reasoning_parser": "witness", "spec_method": "witness"}
FORM = "modulm.structured_output"
PARSER_FILES = ("tool_parser_plugin", "reasoning_parser_plugin")
NOTE = "from witness_notes import note\nnote(__name__)\n"
NOTES = """
import json, os, sys
def note(name, event="import"):
    line = {"module": name, "event": event, "pid": os.getpid(), "argv": sys.argv}
    with open(os.environ["WITNESS_FILE"], "a") as file:
        file.write(json.dumps(line) + "\\n")
"""
MODULES = {
    "vllm.general_plugins": "def witness():\n    note(__name__, 'call')",
    "vllm.platform_plugins": """
from modulm.reference.platform_cpu import CPUPlatform
def witness():
    note(__name__, "call")
    return __name__ + ".Platform"
class Platform(CPUPlatform):
    name = "witness"
    attention_backends = kernels = ("witness",)
""",
    "vllm.stat_logger_plugins": """
from modulm.interfaces.metrics import StatLoggerBase
class witness(StatLoggerBase):
    def __init__(self, vllm_config, engine_index=0): note(__name__, "call")
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
    def log_engine_initialized(self): ...
""",
    "vllm.endpoint_plugins": """
class witness:
    name, required_tasks = "witness", None
    def attach_router(self, app): note(__name__, "call")
    async def init_state(self, engine_client, state, args): ...
""",
    "vllm.logits_processors": """
from modulm.interfaces.logits import AdapterLogitsProcessor
class witness(AdapterLogitsProcessor):
    def is_argmax_invariant(self): return True
    def new_req_logits_processor(self, params): return None
""",
    "modulm.attention": """
from modulm.reference.attention_torch import TorchAttention
class witness(TorchAttention):
    name = "witness"
""",
    "modulm.checkpoints": """
from modulm.checkpoints.safetensors import SafetensorsCheckpoint
class witness(SafetensorsCheckpoint):
    format = "witness"
""",
    "modulm.executors": """
from modulm.worker.executors import InProcessExecutor
class witness(InProcessExecutor):
    pass
""",
    "modulm.kernels": """
from modulm.reference.linear_torch import TorchKernels
class witness(TorchKernels):
    name = "witness"
""",
    "modulm.structured_output": """
from modulm.interfaces.structured import CompiledGrammar, Grammar, StructuredOutputBackend
from modulm.interfaces.support import Accepted
class witness(StructuredOutputBackend):
    name = "witness"
    @classmethod
    def supports(cls, params): return Accepted()
    def __init__(self, vocabulary): ...
    def compile(self, params): return Anything()
class Anything(CompiledGrammar):
    def start(self): return Any()
class Any(Grammar):
    is_terminated = False
    def fill(self, mask): mask[:] = mask.dtype.type(0xffffffff)
    def accept(self, token_ids): return True
    def rollback(self, num_tokens): ...
""",
    "modulm.speculators": """
from modulm.interfaces.speculator import Speculator
class witness(Speculator):
    name = "witness"
    def __init__(self, settings, limits): note(__name__, "call")
    def propose(self, sequences): return [[5]] * len(sequences)
""",
    "modulm.models": """
from modulm.models.llama import LlamaForCausalLM
class witness(LlamaForCausalLM):
    pass
""",
    "modulm.quantization": """
from modulm.interfaces.quantization import QuantizationScheme
from modulm.interfaces.support import Accepted
class witness(QuantizationScheme):
    name = "witness"
    @classmethod
    def matches(cls, checkpoint): return Accepted()
    @classmethod
    def from_checkpoint(cls, checkpoint): return cls()
    def weight(self, checkpoint, module, out_features, in_features): return None
""",
    "modulm.tool_parsers": """
from modulm.interfaces.parsers import TextParser, ToolParser
class witness(TextParser, ToolParser):
    def read(self, text): yield None
""",
    "modulm.reasoning_parsers": """
from modulm.interfaces.parsers import ReasoningParser, TextParser
class witness(TextParser, ReasoningParser):
    def read(self, text): yield None
""",
}
"""What is not here is never loaded: a module that only takes notes."""
CHILDREN = """
import multiprocessing, os
from modulm.plugins.bootstrap import bootstrap
def child():
    bootstrap()
    bootstrap()
def children():
    for method in ("spawn", "fork"):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
        print(method, process.pid)
"""
OFFLINE = """
from modulm import LLM, SamplingParams, StructuredOutputsParams
if __name__ == "__main__":
    llm = LLM(executor="witness", **options)
    form = StructuredOutputsParams(regex="a")
    llm.generate({"prompt_token_ids": [5, 6]}, SamplingParams(max_tokens=2, ignore_eos=True, structured_outputs=form))
    children()
    llm.shutdown()
"""
EMBEDDER = """
import asyncio, time
import psutil
from modulm import AsyncLLM, SamplingParams, StructuredOutputsParams
from modulm.config import EngineConfig
async def generate(llm):
    form = StructuredOutputsParams(regex="a")
    params = SamplingParams(max_tokens=2, ignore_eos=True, structured_outputs=form)
    async for output in llm.generate({"prompt_token_ids": [5, 6]}, params):
        pass
async def main():
    llm = AsyncLLM.from_config(EngineConfig.make(executor="witness", **options))
    await generate(llm)
    (engine,) = psutil.Process().children()
    engine.kill()
    while llm.health().restarts == 0 or not llm.health().ready:
        await asyncio.sleep(0.05)
    await generate(llm)
    llm.shutdown()
if __name__ == "__main__":
    asyncio.run(main())
"""


class Site:
    """Where the witness is installed, the checkpoint that asks for it, and the file that it writes to."""

    def __init__(self, folder):
        self.folder, self.notes = folder, folder / "notes.jsonl"
        info = folder / "witness-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: witness\nVersion: 1.0\n")
        (folder / "witness_notes.py").write_text(NOTES)
        lines = []
        for group in NOUNS:
            module = f"witness_{group.replace('.', '_')}"
            (folder / f"{module}.py").write_text(NOTE + MODULES.get(group, ""))
            name = "WitnessForCausalLM" if group == "modulm.models" else "witness"
            lines += [f"[{group}]", f"{name} = {module}:witness"]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for option in PARSER_FILES:
            (folder / f"{option}.py").write_text(f"from witness_notes import note\nnote({option!r})\n")
        self.options = {
            **OPTIONS, "model": str(folder / "model"),
            **{option: str(folder / f"{option}.py") for option in PARSER_FILES},
        }  # fmt: skip
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("MODULM_", "VLLM_"))},
            "PYTHONPATH": str(folder), "VLLM_PLUGINS": "witness", "WITNESS_FILE": str(self.notes),
            "MODULM_STRICT_PLUGINS": "1", "OMP_NUM_THREADS": "1", "MODULM_CACHE_DIR": str(folder / "cache"),
        }  # fmt: skip

    def command(self, *words, status=0):
        done = subprocess.run(
            [sys.executable, "-m", "modulm.cli", *words],
            env=self.environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done.stdout

    def flags(self):
        chosen = {**self.options, "executor": "witness"}
        return [f"--{name.replace('_', '-')}={value}" for name, value in chosen.items() if name != "model"]

    def script(self, text):
        path = self.folder / "program.py"
        path.write_text(f"{CHILDREN}\noptions = {self.options!r}\n{text}")
        done = subprocess.run(
            [sys.executable, str(path)], env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def events(self):
        return [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []

    def loaded(self, kind, children=None):
        """Return group -> kinds of process that imported its module, each once, `kind` being what the test started."""
        found, events = {}, self.events()
        times = Counter((event["module"], event["event"], event["pid"]) for event in events)
        assert set(times.values()) == {1}, times
        for event in events:
            group = re.sub("^witness_(vllm|modulm)_", r"\1.", event["module"])
            where = "engine" if "modulm-engine" in event["argv"] else (children or {}).get(event["pid"], kind)
            found.setdefault(group, set()).add(where)
        return found


@pytest.fixture
def site(tmp_path, tiny_llama):
    tensors = tiny_llama(tmp_path / "model", architecture="WitnessForCausalLM")
    save_file(tensors, tmp_path / "model/model.safetensors")
    return Site(tmp_path)


def expected(*kinds, without=None):
    """What the table says of these kinds, and where parser files go: wherever general plugins do.

    A backend for structured output is chosen by a request: `without` is that group where none asked.
    """
    table = {group: set(where) & set(kinds) for group, where in PROCESSES.items() if group != without}
    table |= {option: set(PROCESSES[GENERAL]) & set(kinds) for option in PARSER_FILES}
    return {group: where for group, where in table.items() if where}


def test_the_table_has_every_group_and_no_other_process():
    assert PROCESSES.keys() == HOOKS.keys() | FAMILIES.keys()
    assert {kind for kinds in PROCESSES.values() for kind in kinds} == PROCESS_KINDS.keys()


@pytest.mark.parametrize(
    "words",
    [
        ["plugins", "list", "--json"], ["plugins", "why", "witness"], ["env"],
        ["generate", "--help"], ["--version"],
    ],
)  # fmt: skip
def test_a_command_that_runs_no_engine_loads_nothing(site, words, monkeypatch):
    monkeypatch.chdir(site.folder)
    assert site.command(*words) and site.events() == []


def test_the_doctor_tries_plugins_in_processes_of_their_own(site):
    assert "none tried" in site.command("plugins", "doctor", "--no-import") and site.events() == []
    site.command("plugins", "doctor", "--fresh", status=1)  # some modules here hold nothing but notes
    tried = {event["module"] for event in site.events()}
    assert len(tried) == len(NOUNS) and {tuple(event["argv"]) for event in site.events()} == {("-c",)}


def test_generate(site):
    site.command("generate", f"--model={site.options['model']}", "--prompt=a", "--max-tokens=2", *site.flags())
    assert site.loaded("offline") == expected("offline", without=FORM)


def test_an_offline_program_and_its_children(site):
    children = {int(pid): method for method, pid in (line.split() for line in site.script(OFFLINE).splitlines())}
    want = expected("offline")
    want[GENERAL] |= {"spawn", "fork"}  # a child that calls the bootstrap function; nothing else is asked for there
    assert set(children.values()) == {"spawn", "fork"} and site.loaded("offline", children) == want


def test_a_program_that_embeds_the_engine_and_an_engine_that_is_started_anew(site):
    site.script(EMBEDDER)
    assert site.loaded("embedder") == expected("embedder", "engine")
    engines = {}
    for event in site.events():
        if "modulm-engine" in event["argv"]:
            engines.setdefault(event["pid"], set()).add((event["module"], event["event"]))
    first, second = engines.values()
    assert first == second


@pytest.mark.parametrize("in_process", [False, True])
def test_the_server_and_its_engine(site, in_process):
    words = ["serve", site.options["model"], "--host=127.0.0.1", "--port=0", *site.flags()]
    words += ["--in-process"] if in_process else []
    server = subprocess.Popen(
        [sys.executable, "-m", "modulm.cli", *words], env=site.environment, stderr=subprocess.PIPE, text=True
    )
    try:
        said = []
        for line in server.stderr:
            said.append(line)
            if "Serving" in line:
                break
        assert server.poll() is None, "".join(said)
        deadline = time.monotonic() + 30
        while "vllm.endpoint_plugins" not in site.loaded("server") and time.monotonic() < deadline:
            time.sleep(0.05)
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    finally:
        server.kill()
    loaded = site.loaded("server")
    if in_process:
        want = expected("server", "offline", without=FORM)
        assert loaded == {group: {"server"} for group in want}
    else:
        assert loaded == expected("server", "engine", without=FORM)
