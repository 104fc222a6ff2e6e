"""`modulm plugins new` for every kind: its wheel, alone beside modulm-core, is used in an engine and passes its tests.

Every kind gets an environment of its own. It holds what core and the plugin declare and no more: third-party packages
as links to those of this environment, modulm's own from wheels that are built here. The testkit comes after the plugin
was used, for its tests.
"""

import json
import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from modulm_testkit.templates.kinds import KINDS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import linked_environment  # noqa: E402
from linked_environment import third_party  # noqa: E402

WRITTEN = sorted(KINDS)
SERVED = {"endpoint", "reasoning-parser", "stat-logger", "tool-parser"}
"""Kinds that are used by a server."""
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "vocab_size": 258,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "hidden_act": "silu",
    "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
STORY = ("<think>", "Hm.", "</think>", "Wait.", "<tool_call>", '{"name": "add", "arguments": {"a": 1}}', "</tool_call>")
BUILD = """
import sys
from hatchling.builders.wheel import WheelBuilder
for folder in sys.argv[2:]:
    print(*WheelBuilder(folder).build(directory=sys.argv[1], versions=["standard"]), sep="\\n")
"""
PIP, UV = (sys.executable, "-m", "pip"), (Path(sys.executable).parent / "uv", "pip")
"""The second takes a tenth of the time, for what a user does not do in this way."""
QUIET = ("--quiet", "--no-index")
OURS = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions() if 'modulm' in d.name))"


@dataclass
class Outcome:
    """What was seen of one kind."""

    installed: str
    listed: list[dict]
    used: subprocess.CompletedProcess
    tested: subprocess.CompletedProcess


def run(*words, **options):
    """Run a command without what this process was told of plugins and paths."""
    ours = ("VLLM_", "MODULM_", "PYTHONPATH", "VIRTUAL_ENV")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    clean |= {"OMP_NUM_THREADS": "1", "MODULM_STRICT_PLUGINS": "1", **options.pop("env", {})}
    words = [str(word) for word in words]
    return subprocess.run(words, env=clean, capture_output=True, text=True, timeout=300, check=False, **options)


def need(done):
    """Return the output of a command that must have succeeded."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("new-plugins")


@pytest.fixture(scope="module")
def wheels(folder):
    """Build core, testkit and a package of each kind."""
    for kind in WRITTEN:
        need(run(sys.executable, "-m", "modulm.cli", "plugins", "new", kind, f"some-{kind}", cwd=folder))
    packages = [ROOT / "packages/core", ROOT / "packages/testkit", *(folder / f"some-{kind}" for kind in WRITTEN)]
    need(run(sys.executable, "-c", BUILD, folder / "wheels", *packages))
    return folder / "wheels"


@pytest.fixture(scope="module")
def outcomes(request, folder, wheels, checkpoints):
    """Try every kind that was selected, two at a time."""
    items = [item for item in request.session.items if "outcomes" in item.fixturenames]
    kinds = sorted({item.callspec.params["kind"] for item in items})
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda kind: attempt(kind, folder, wheels, checkpoints), kinds)
        return dict(zip(kinds, found, strict=True))


@pytest.fixture(scope="module")
def checkpoints(folder):
    """Two models: a Llama with random weights, and one that says `STORY` after any prompt, whatever came before."""
    place = folder / "checkpoints"
    random = np.random.default_rng(7)
    small = {
        name: random.normal(1.0 if len(shape) == 1 else 0.0, 0.3, shape).astype(np.float32)
        for name, shape in tensor_shapes(CONFIG).items()
    }
    save_checkpoint(place / "model", CONFIG, small, ())
    words = ("<|assistant|>", *STORY)
    config = {**CONFIG, "vocab_size": 272, "hidden_size": 272, "num_hidden_layers": 1, "intermediate_size": 4}
    scripted = {
        name: (np.ones if len(shape) == 1 else np.zeros)(shape, np.float32)
        for name, shape in tensor_shapes(config).items()
    }
    scripted["model.embed_tokens.weight"][...] = np.eye(272)
    for at, token in enumerate(words):  # attention and MLP add nothing: the last token alone decides on the next
        scripted["lm_head.weight"][1 if token == STORY[-1] else 258 + at + 1, 258 + at] = 10.0
    save_checkpoint(place / "story", config, scripted, words)
    return place


def save_checkpoint(place, config, tensors, words):
    """Write a folder with a tokenizer that has a token for each byte, and for each of `words`."""
    place.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, **{each: i for i, each in enumerate(alphabet, 2)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(list(words))
    tokenizer.save(str(place / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}<|assistant|>"
    names = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (place / "tokenizer_config.json").write_text(json.dumps(names))
    (place / "config.json").write_text(json.dumps(config))
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})


def tensor_shapes(config):
    size, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    layer = {
        "self_attn.q_proj": (size, size), "self_attn.k_proj": (size // 2, size), "self_attn.v_proj": (size // 2, size),
        "self_attn.o_proj": (size, size), "mlp.gate_proj": (inner, size), "mlp.up_proj": (inner, size),
        "mlp.down_proj": (size, inner), "input_layernorm": (size,), "post_attention_layernorm": (size,),
    }  # fmt: skip
    count = config["num_hidden_layers"]
    layers = {f"model.layers.{i}.{name}.weight": shape for i in range(count) for name, shape in layer.items()}
    ends = {"model.embed_tokens.weight": (vocabulary, size), "model.norm.weight": (size,)}
    return {**ends, **layers, "lm_head.weight": (vocabulary, size)}


def attempt(kind, folder, wheels, checkpoints):
    place, source, package = folder / f"some-{kind}-env", folder / f"some-{kind}", f"some_{kind.replace('-', '_')}"
    core = "modulm-core[serve]" if kind in SERVED else "modulm-core"
    tests_need = tomllib.loads((source / "pyproject.toml").read_text())["dependency-groups"]["test"]
    folders = [ROOT / "packages/core", ROOT / "packages/testkit", source]
    projects = [tomllib.loads((one / "pyproject.toml").read_text())["project"] for one in folders]
    needed = third_party([core, source.name, *tests_need], {each["name"]: each for each in projects})
    python = linked_environment.make(place, needed)
    (wheel,) = wheels.glob(f"{package}-*.whl")
    need(run(*PIP, "--python", python, "install", *QUIET, "--no-cache-dir", "--find-links", wheels, wheel, core))
    installed = need(run(python, "-c", OURS))
    listed = json.loads(need(run(python, "-m", "modulm.cli", "plugins", "list", "--json")))
    for model in checkpoints.iterdir():
        (place / model.name).symlink_to(model)
    cache = {"MODULM_CACHE_DIR": str(place / "cache")}
    script = ROOT / "integration_tests/using_new_plugins.py"
    used = run(python, script, kind, package, package, place / "model", cwd=place, env=cache)
    need(run(*UV, "install", "--python", python, *QUIET, "--no-cache", "--find-links", wheels, *tests_need))
    tested = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=source, env=cache)
    return Outcome(installed=installed, listed=listed, used=used, tested=tested)


@pytest.mark.parametrize("kind", WRITTEN)
def test_it_is_installed_alone(outcomes, kind):
    assert outcomes[kind].installed.split() == ["modulm-core"]
    (record,) = [each for each in outcomes[kind].listed if each["distribution"] == f"some-{kind}"]
    assert record["group"] == KINDS[kind].group and record["version"] == "0.1.0"
    assert record["state"] == ("needs naming" if kind == "endpoint" else "available"), record


@pytest.mark.parametrize("kind", WRITTEN)
def test_it_is_used_in_an_engine(outcomes, kind):
    assert json.loads(need(outcomes[kind].used))


@pytest.mark.parametrize("kind", WRITTEN)
def test_it_passes_its_own_tests(outcomes, kind):
    output = need(outcomes[kind].tested)
    assert " passed" in output and "xfail" not in output


def test_types_are_right(wheels, folder):
    """All at once, by the settings that each has of its own: mypy takes most of its time for torch."""
    sources = [folder / f"some-{kind}" / "src" for kind in WRITTEN]
    path = {"MYPYPATH": os.pathsep.join(map(str, sources))}
    packages = [next(source.iterdir()) for source in sources]
    options = ["--strict", "--explicit-package-bases", "--cache-dir", ROOT / ".mypy_cache/new-plugins"]
    need(run(sys.executable, "-m", "mypy", *options, *packages, cwd=folder, env=path))
