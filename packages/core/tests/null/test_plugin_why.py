"""`modulm plugins why NAME`: for every kind of name, whether it is used, why not, and what else there is."""

import re

import pytest

GENERAL, KERNELS, DRAFTERS, MODELS = "vllm.general_plugins", "modulm.kernels", "modulm.speculators", "modulm.models"
REGISTERS = """
from modulm.plugins.models import ModelRegistry
def f(): ModelRegistry.register_model("MineForCausalLM", "pkg:Model")
"""


@pytest.fixture(scope="module")
def site(new_site):
    made = new_site()
    made.install("dist-a", {KERNELS: {"fast": "m_fast:K"}, GENERAL: {"gen": "m_gen:f"}, DRAFTERS: {"gone": "m_gone:P"}},
                 m_fast="raise OSError('driver')", m_gen=REGISTERS)  # fmt: skip
    for name in ("twin-a", "twin-b"):
        made.install(name, {DRAFTERS: {"twin": "m_twin:P"}}, m_twin="class P: ...")
    made.install("dist-ep", {"vllm.endpoint_plugins": {"ep": "m_ep:make"}})
    return made


def why(site, command, name, **variables):
    answers, stderr, status = command(site, "why", name, "--json", **variables)
    assert answers, stderr
    return answers, status


def test_one_that_can_be_used(site, command):
    (answer,), status = why(site, command, "fast")
    assert status == 0 and answer["usable"] and answer["state"] == "available" and answer["chosen"] is None
    others = {each["name"]: (each["accepted"], each["reason"]) for each in answer["candidates"]}
    assert others["fast"] == others["torch"] == (None, "asked when a model is loaded")


def test_not_installed(site, command):
    (answer,), status = why(site, command, "flash_attn")
    assert status == 1 and answer["install"] == "pip install modulm-attention-flash"
    assert answer["text"].startswith(
        "Attention backend 'flash_attn' is not installed. It comes with modulm-attention-flash"
    )
    assert "torch" in {each["name"] for each in answer["candidates"]}


REASONS = {
    "gone": ("broken", "names the module 'm_gone', of which there is no file"),
    "ep": ("needs naming", "endpoint plugins are loaded only when named: VLLM_PLUGINS=+ep"),
    "twin-a:twin": ("shadowed", "twin-b 1.0 provides 'twin' too; write 'twin-a:twin' to choose this one"),
}


@pytest.mark.parametrize("name", REASONS)
def test_one_that_cannot(site, command, name):
    (answer,), status = why(site, command, name)
    state, reason = REASONS[name]
    assert (status, answer["state"], answer["usable"]) == (1, state, False)
    assert (
        reason in answer["text"]
        and [c["accepted"] for c in answer["candidates"] if c["name"] == answer["name"]][0] is False
    )


def test_a_list_turns_it_off(site, command):
    (answer,), status = why(site, command, "fast", VLLM_PLUGINS="gen")
    assert status == 1 and "is disabled: VLLM_PLUGINS='gen' does not name it" in answer["text"]
    (answer,), status = why(site, command, "fast", MODULM_DISABLE_PLUGINS="dist-a")
    assert status == 1 and "is disabled: MODULM_DISABLE_PLUGINS='dist-a' names it" in answer["text"]


def test_a_distribution_and_all_groups(site, command):
    answers, status = why(site, command, "dist-a")
    assert status == 0 and {answer["group"] for answer in answers} == {KERNELS, GENERAL, DRAFTERS}
    (general,) = [answer for answer in answers if answer["group"] == GENERAL]
    assert general["order"] == "every one is loaded" and general["candidates"][0]["accepted"] is True


def test_architectures(site, command):
    (answer,), status = why(site, command, "LlamaForCausalLM")
    assert status == 0 and answer["state"] == "built in" and answer["group"] == MODELS


def test_what_the_doctor_saw(site, command):
    assert command(site, "doctor")[2] == 1
    (answer,), status = why(site, command, "fast")
    assert (
        status == 1
        and "is broken: as the doctor last saw it: " in answer["text"]
        and "OSError: driver" in answer["text"]
    )
    (answer,), status = why(site, command, "MineForCausalLM")
    assert (status, answer["group"]) == (0, MODELS) and "registered by 'gen'" in answer["text"]


def test_unknown(site, command):
    _, stderr, status = command(site, "why", "fsat")
    assert status == 2 and "Plugin 'fsat' is unknown" in stderr and "Did you mean 'fast'?" in stderr


def test_text(site, command):
    out, _, status = command(site, "why", "twin")
    assert status == 1
    assert out.startswith("Speculator 'twin' (twin-a 1.0) is shadowed: twin-b 1.0 provides 'twin' too")
    assert re.search(r"\n  modulm.speculators: by name\n    gone +rejected: ", out)
