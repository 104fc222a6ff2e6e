"""Uses one package from `modulm plugins new` in a real engine, and prints as JSON what came of it.

Run by `test_new_plugins.py` in the package's own environment: `using_new_plugins.py KIND NAME PACKAGE CHECKPOINT`. Each
function asserts that the plugin did its work there: that it was called, and that its answers are those of core's own
parts or of plain arithmetic.
"""

import asyncio
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

PROMPT = {"prompt_token_ids": list(range(10, 40))}
STEPS = 8


def llm(model, **options):
    """Return an engine on the tiny checkpoint."""
    from modulm import LLM

    return LLM(str(model), num_kv_blocks=100, max_num_seqs=4, **options)


def answer(engine, prompt=None, **extra):
    """Return greedy tokens and the log-probability of each."""
    from modulm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True, logprobs=0, **extra)
    output = engine.generate({"prompt_token_ids": prompt} if prompt else PROMPT, params)[0].outputs[0]
    scores = [step[token].logprob for step, token in zip(output.logprobs, output.token_ids, strict=True)]
    return output.token_ids, scores


def same(found, wanted, within=1e-4):
    assert found[0] == wanted[0], (found, wanted)
    assert all(abs(a - b) < within for a, b in zip(found[1], wanted[1], strict=True)), (found, wanted)


def counted(owner, method):
    """Count calls of a method of a class."""
    calls = []
    before = getattr(owner, method)

    def counting(self, *args, **kwargs):
        calls.append(method)
        return before(self, *args, **kwargs)

    setattr(owner, method, counting)
    return calls


def chosen(engine, family):
    return next(choice["chosen"] for choice in engine.explain()["choices"] if choice["family"] == family)


def kernels_used(engine):
    return {line.partition(":")[0] for line in engine.explain()["worker"]["weights by kernel"]}


def attention(name, package, model):
    backend = module(package, "backend").__dict__[class_name(package, "backend", "Attention")]
    calls = counted(backend, "forward")
    engine = llm(model, attention_backend=name)
    found = answer(engine)
    assert chosen(engine, "modulm.attention") == name
    assert len(calls) == 2 * STEPS, "layers times steps"
    same(found, answer(llm(model, attention_backend="torch")))
    return {"calls": len(calls)}


def kernels(name, package, model):
    packed = counted(module(package, "provider").PackedDense, "linear")
    engine = llm(model)
    found = answer(engine)
    assert kernels_used(engine) == {name} and len(packed) >= STEPS * (2 * 4 + 1)
    same(found, answer(llm(model, kernels="torch")))
    return {"products": len(packed)}


def quantization(name, package, model):
    """Against the same model with weights that numpy has dequantised."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    small, wide = model.parent / f"{name}-int8", model.parent / f"{name}-wide"
    subprocess.run(
        [sys.executable, "-m", f"{package}.convert", str(model), str(small)], check=True, stdout=subprocess.DEVNULL
    )
    engine = llm(small)
    found = answer(engine)
    assert chosen(engine, "modulm.quantization") == name
    assert any("ChannelInt8" in line for line in engine.explain()["worker"]["weights by kernel"])
    shutil.copytree(model, wide)
    tensors = load_file(small / "model.safetensors")
    scales = {key: tensors.pop(key) for key in list(tensors) if key.endswith("_scale")}
    assert len(scales) == 2 * 7
    for key, scale in scales.items():
        codes = tensors[key.removesuffix("_scale")]
        assert codes.dtype == np.int8
        tensors[key.removesuffix("_scale")] = codes.astype(np.float32) * scale[:, None]
    save_file(tensors, wide / "model.safetensors", metadata={"format": "pt"})
    same(found, answer(llm(wide)))
    plain = answer(llm(model))[1]
    assert max(abs(a - b) for a, b in zip(found[1], plain, strict=True)) > 1e-4, "it was not rounded at all"
    return {"layers": len(scales)}


def structured_output(name, package, model):
    from modulm import SamplingParams, StructuredOutputsParams

    fills = counted(module(package, "backend").Choosing, "fill")
    engine = llm(model, structured_output_backend=name)
    free = engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=4))[0].outputs[0].text
    found = []
    for choice in (["yes", "no"], ["über", "unter"]):
        form = StructuredOutputsParams(choice=choice)
        output = engine.generate(PROMPT, SamplingParams(temperature=0, structured_outputs=form))[0].outputs[0]
        assert output.text in choice and output.finish_reason == "stop", output
        found.append(output.text)
    assert free not in found and len(fills) >= sum(map(len, found))
    return found


def speculator(name, package, model):
    """On a sequence that repeats itself: the same answer in fewer steps."""
    calls = counted(module(package, "speculator").__dict__[class_name(package, "speculator", "Speculator")], "propose")
    engine = llm(model, speculative_config={"method": name, "num_speculative_tokens": 3, "lookup": 1})
    assert chosen(engine, "modulm.speculators") == name
    found = []
    for prompt in ([7, 8] * 12, PROMPT["prompt_token_ids"]):
        found.append([answer(each, prompt=prompt) for each in (engine, llm(model))])
        same(*found[-1])
    drafts = engine.stats().scheduler.spec_decoding_stats
    assert len(calls) >= 2 and drafts.num_draft_tokens >= drafts.num_drafts > 0
    return {"drafts": drafts.num_drafts, "accepted": drafts.num_accepted_tokens}


def renamed(model, architecture):
    """Return a copy of the checkpoint that says it is of another architecture."""
    folder = shutil.copytree(model, model.parent / architecture)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    return folder


def model(name, package, model):
    found = class_name(package, "model", "ForCausalLM")
    calls = counted(getattr(module(package, "model"), found), "forward")
    same(answer(llm(renamed(model, found))), answer(llm(model)))
    assert len(calls) >= STEPS
    return {"architecture": found, "calls": len(calls)}


def general(name, package, model):
    from modulm.plugins.bootstrap import load_records

    (architecture,) = module(package, "plugin").ARCHITECTURES
    same(answer(llm(renamed(model, architecture))), answer(llm(model)))
    (record,) = [each for each in load_records() if each.name == name]
    assert (record.state, record.registered) == ("loaded", [f"modulm.models:{architecture}"])
    return {"registered": record.registered}


def logits_processor(name, package, model):
    from modulm.errors import RequestError

    engine = llm(model)
    plain = answer(engine)[0]
    other = answer(engine, extra_args={name: sorted(set(plain))})[0]
    assert not set(plain) & set(other), (plain, other)
    assert answer(engine)[0] == plain
    try:
        answer(engine, extra_args={name: "all"})
    except RequestError as error:
        return {"refused": str(error)}
    raise AssertionError("a list that is none was accepted")


def platform(name, package, model):
    engine = llm(model)
    found = answer(engine)
    from modulm.plugins.platforms import current_platform

    assert current_platform().name == name
    assert engine.config.max_num_batched_tokens == module(package, "platform")._TOKENS_PER_STEP
    same(found, answer(llm(model, device="cpu")))
    return {"platform": current_platform().name}


def io_processor(name, package, model):
    """By hand: no room of core asks for IO processors yet."""
    from modulm import SamplingParams
    from modulm.plugins.hooks import load_io_processor

    engine = llm(model)
    processor = load_io_processor(name)(engine.config, None)
    data = processor.parse_data({"instruction": "Again.", "documents": ["the quick fox", "a lazy dog"]})
    prompts = processor.pre_process(data)
    params = SamplingParams(temperature=0, max_tokens=STEPS)
    found = processor.post_process(engine.generate(prompts, params))
    texts = [engine.generate(f"{text}\n\nAgain.\n", params)[0].outputs[0].text for text in data.documents]
    assert found == {"answers": [text.strip() for text in texts]} and len(set(texts)) == 2
    return found


def lora_resolver(name, package, model):
    """By the registry: the engine serves no adapters yet. With the engine's settings, as a server would ask."""
    from modulm.plugins.registry import registry

    adapter = model.parent / "adapters" / "mine"
    adapter.mkdir(parents=True)
    config = {"peft_type": "LORA", "base_model_name_or_path": str(model)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    engine = llm(model, plugin_config={name: {"folder": str(adapter.parent)}})
    resolver = registry("modulm.lora_resolvers").get(name)()

    def resolve(base, lora):
        return asyncio.run(resolver.resolve_lora(base, lora))

    found = resolve(engine.config.model, "mine")
    assert (found.name, found.path) == ("mine", str(adapter))
    assert resolve("another", "mine") is resolve(str(model), "yours") is resolve(str(model), "../mine") is None
    return {"key": found.key}


@contextmanager
def server(model, *options, **variables):
    """Run `modulm serve` on a free port and yield its address."""
    words = [sys.executable, "-m", "modulm.cli", "serve", str(model), "--host=127.0.0.1", "--port=0"]
    words += ["--num-kv-blocks=100", "--max-num-seqs=4", *options]
    process = subprocess.Popen(
        words, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    lines = []
    try:
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"Serving .* on 127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise AssertionError("".join(lines))
        address = f"http://127.0.0.1:{found[1]}"
        while not is_ready(address):
            assert process.poll() is None, "".join([*lines, *process.stderr])
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=30)


def is_ready(address):
    try:
        return urllib.request.urlopen(f"{address}/ready", timeout=5).status == 200
    except OSError:
        return False


def ask(address, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def stat_logger(name, package, model):
    file = model.parent / f"{name}.jsonl"
    with server(model, f"--plugin-config={name}.path={file}") as address:
        body = {"model": str(model), "prompt": PROMPT["prompt_token_ids"], "max_tokens": STEPS, "ignore_eos": True}
        usage = ask(f"{address}/v1/completions", body)["usage"]
    (line,) = [json.loads(each) for each in file.read_text().splitlines()]
    assert (line["prompt_tokens"], line["generated_tokens"]) == (30, STEPS)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (30, STEPS)
    assert (line["model"], line["engine"], line["finish_reason"]) == (str(model), 0, "length")
    assert 0 < line["first_token_s"] <= line["end_to_end_s"]
    return line


def endpoint(name, package, model):
    with server(model, VLLM_PLUGINS=f"+{name}") as address:
        first, second = ask(f"{address}/{name}/status"), ask(f"{address}/{name}/status")
        (served,) = ask(f"{address}/v1/models")["data"]
    assert first["ready"] and first["max_model_len"] == served["max_model_len"]
    assert first["architectures"] == ["LlamaForCausalLM"] and second["num_asked"] == 2
    return second


def said(model, *options, **request):
    """Ask the model that always says the same, and return its message."""
    story = model.parent / "story"
    body = {"model": str(story), "messages": [{"role": "user", "content": "Add."}], "temperature": 0, **request}
    with server(story, *options) as address:
        (choice,) = ask(f"{address}/v1/chat/completions", body)["choices"]
    return choice["message"]


def tool_parser(name, package, model):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    message = said(model, "--enable-auto-tool-choice", f"--tool-call-parser={name}", tools=[tool])
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert message["content"] == "<think>Hm.</think>Wait."
    return message


def reasoning_parser(name, package, model):
    message = said(model, f"--reasoning-parser={name}")
    assert message["reasoning_content"] == "Hm."
    assert message["content"] == 'Wait.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    return message


def module(package, name):
    return importlib.import_module(f"{package}.{name}")


def class_name(package, where, noun):
    (found,) = [each for each, one in vars(module(package, where)).items()
                if each.endswith(noun) and getattr(one, "__module__", "") == f"{package}.{where}"
                and each not in ("SelfAttention",)]  # fmt: skip
    return found


if __name__ == "__main__":
    kind, name, package, checkpoint = sys.argv[1:]
    print(json.dumps(globals()[kind.replace("-", "_")](name, package, Path(checkpoint))))
