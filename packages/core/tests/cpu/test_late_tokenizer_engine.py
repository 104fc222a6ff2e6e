"""An engine for ids needs no tokenizer: one that is broken costs those who ask for text, and nobody else."""

import json
import shutil

import pytest

from modulm import LLM, SamplingParams
from modulm.async_llm import AsyncLLM
from modulm.config import EngineConfig
from modulm.errors import CheckpointError
from modulm.frontend.tokenizer import Tokenizer
from modulm.structured_outputs import StructuredOutputsParams

IDS = {"prompt_token_ids": [5, 6, 7, 8]}
BROKEN = "cannot be read by the tokenizers library"


def bare(**options):
    return SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, **options)


@pytest.fixture
def broken(tiny_folder, tmp_path):
    """A folder whose tokenizer.json is JSON, with its end-of-sequence token, but no tokenizer."""
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["type"] = "NoSuchModel"
    path.write_text(json.dumps(content))
    return folder


def test_ids_build_no_tokenizer(tiny_llm, monkeypatch):
    expected = tiny_llm().generate([IDS], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))[0].outputs[0]
    llm = tiny_llm()
    build, built = Tokenizer.from_data, []
    monkeypatch.setattr(Tokenizer, "from_data", lambda data: built.append(data) or build(data))
    output = llm.generate([IDS], bare(logprobs=2, stop_token_ids=[1], min_tokens=2))[0]
    assert output.outputs[0].token_ids == expected.token_ids
    assert output.outputs[0].text == "" and not built
    assert llm.generate([IDS], SamplingParams(temperature=0, max_tokens=6))[0].outputs[0].text
    assert llm.get_tokenizer().encode("the fox") and len(built) == 1


def test_a_broken_tokenizer_costs_only_those_who_need_it(broken, tiny_llm):
    expected = tiny_llm().generate([IDS], bare())[0].outputs[0].token_ids
    llm = tiny_llm(model=str(broken))
    stream = llm.stream(IDS, bare())
    first = next(stream)
    form = StructuredOutputsParams(regex="[a-z]+")
    for params in (
        SamplingParams(max_tokens=4),
        SamplingParams(max_tokens=4, stop=["x"]),
        bare(bad_words=["x"]),
        bare(structured_outputs=form),
    ):
        with pytest.raises(CheckpointError, match=BROKEN):
            llm.generate([IDS, IDS], params)
    for ask in (lambda: llm.generate(["text"], bare()), llm.get_tokenizer):
        with pytest.raises(CheckpointError, match=BROKEN):
            ask()
    with pytest.raises(CheckpointError, match=BROKEN):
        llm.chat([{"role": "user", "content": "hi"}])
    rest = [token for output in stream for token in output.outputs[0].token_ids]
    assert [*first.outputs[0].token_ids, *rest] == expected
    assert llm.generate([IDS], bare())[0].outputs[0].token_ids == expected


def test_a_server_does_not_start_on_it(broken):
    config = EngineConfig.make(model=str(broken), num_kv_blocks=40)
    with pytest.raises(CheckpointError, match=BROKEN):
        AsyncLLM.from_config(config, in_process=True)


@pytest.mark.parametrize("content", [b"", b'{"added_tokens": [{"id": 1, "content":'])
def test_one_that_was_cut_off_stops_every_start(broken, content):
    (broken / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=BROKEN):
        LLM(model=broken, num_kv_blocks=40)


def test_one_that_is_named_is_read_at_the_start(tiny_folder, broken):
    with pytest.raises(CheckpointError, match=BROKEN):
        LLM(model=tiny_folder, tokenizer=str(broken), num_kv_blocks=40)


def test_the_end_of_sequence_is_known_all_the_same(tiny_folder, tmp_path, tiny_llm, monkeypatch):
    """Where only the tokenizer's configuration names it."""
    folder = shutil.copytree(tiny_folder, tmp_path / "quiet")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    eos = Tokenizer.from_data(tiny_llm()._launched.resolution.checkpoint.tokenizer()).eos_token_id
    assert eos is not None
    llm = tiny_llm(model=str(folder))
    monkeypatch.setattr(Tokenizer, "from_data", lambda data: pytest.fail("it is built"))
    params = SamplingParams(max_tokens=9, logit_bias={eos: 100.0}, detokenize=False)
    assert llm.generate([IDS], params)[0].outputs[0].finish_reason == "stop"
