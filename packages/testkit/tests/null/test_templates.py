"""What `modulm plugins new` writes for each kind, read as text; integration_tests/test_new_plugins.py runs it."""

import ast
import re
import tomllib
from importlib import metadata

import pytest

from modulm.cli import main
from modulm.errors import ConfigError
from modulm.interfaces import VERSIONS
from modulm_testkit.templates import TEMPLATES
from modulm_testkit.templates.kinds import KINDS
from modulm_testkit.templates.names import names

WRITTEN = sorted(KINDS)
ASKED = {
    "attention", "kernels", "quantization", "model", "structured-output", "tool-parser", "reasoning-parser",
    "speculator", "lora-resolver", "stat-logger", "platform", "io-processor", "endpoint", "logits-processor", "general",
}  # fmt: skip


def test_every_kind_is_listed_with_a_line(capsys):
    assert set(KINDS) == ASKED
    assert main(["plugins", "new", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)
    assert not [line for line in lines if "Not yet" in line]


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_package_is_complete(kind, tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(["plugins", "new", kind, "some-Plugin.x", "--path", str(folder)]) == 0
    assert f"cd {folder}\n" in capsys.readouterr().out
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert {
        ".github/workflows/test.yml", ".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml",
        "src/some_plugin_x/__init__.py", "src/some_plugin_x/py.typed", "tests/test_conformance.py",
    } <= set(files)  # fmt: skip
    for name, path in files.items():
        text = path.read_text()
        assert not re.search(r"\$(?!\{\{)", text), f"{name} has a placeholder left"
        assert not text or text.endswith("\n")
        if name.endswith(".py"):
            assert ast.get_docstring(ast.parse(text)), f"{name} does not say what it is"


@pytest.mark.parametrize("kind", WRITTEN)
def test_metadata(kind, tmp_path):
    TEMPLATES.write(kind, "some-plugin", tmp_path, "MIT")
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["license"], project["license-files"]) == ("some-plugin", "MIT", ["LICENSE"])
    assert (tmp_path / "LICENSE").read_text().startswith("MIT License\n")
    points = dict(project["entry-points"])
    number = f"v{VERSIONS[KINDS[kind].group]}"
    assert points.pop("modulm.interface_versions") == {KINDS[kind].group: f"{number}:{number}"}
    ((group, entries),) = points.items()
    ((name, reference),) = entries.items()
    assert group == KINDS[kind].group
    assert name == ("SomePluginForCausalLM" if kind == "model" else "some_plugin")
    module, _, attribute = reference.partition(":")
    tree = ast.parse((tmp_path / "src" / f"{module.replace('.', '/')}.py").read_text())
    assert attribute in [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    major, minor, *_ = metadata.version("modulm-core").split(".")
    assert any(f">={major}.{minor},<{major}.{int(minor) + 1}" in line for line in project["dependencies"])


@pytest.mark.parametrize("license", ["Apache-2.0", "BSD-3-Clause", "MIT"])
def test_licences(license, tmp_path):
    assert license in TEMPLATES.licenses and TEMPLATES.licenses[0] == "Apache-2.0"
    TEMPLATES.write("general", "some-plugin", tmp_path, license)
    assert f'license = "{license}"' in (tmp_path / "pyproject.toml").read_text()
    assert f"Licence: {license}." in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("kind", "asked", "package", "name", "camel"),
    [
        ("attention", "my-attention", "my_attention", "my_attention", "My"),
        ("attention", "modulm-attention-flash", "modulm_attention_flash", "flash", "Flash"),
        ("quantization", "modulm-quant-AWQ", "modulm_quant_awq", "awq", "Awq"),
        ("quantization", "Acme.int8_weights", "acme_int8_weights", "acme_int8_weights", "AcmeInt8Weights"),
        ("quantization", "modulm-quant-4bit", "modulm_quant_4bit", "quant_4bit", "Quant4bit"),
        ("attention", "modulm-attention", "modulm_attention", "attention", "Attention"),
        ("kernels", "kernels-for", "kernels_for", "kernels_for", "KernelsFor"),
    ],
)
def test_names(kind, asked, package, name, camel):
    found = names(KINDS[kind], asked)
    assert (found.distribution, found.package, found.name, found.camel) == (asked, package, name, camel)


@pytest.mark.parametrize(
    ("kind", "asked", "words"),
    [
        ("attention", "my plugin", "made of letters, digits"),
        ("attention", "-x", "made of letters, digits"),
        ("attention", "plügin", "made of letters, digits"),
        ("attention", "../evil", "made of letters, digits"),
        ("attention", "x\n", "made of letters, digits"),
        ("attention", "", "made of letters, digits"),
        ("attention", "4bits", "imported as '4bits', which is no name in Python"),
        ("attention", "class", "imported as 'class', which is no name in Python"),
        ("general", "json", "imported as 'json', and there is such a module already"),
        ("general", "Modulm", "imported as 'modulm', and there is such a module already"),
        ("attention", "modulm-attention-torch", "chosen as 'torch', which is core's own"),
        ("platform", "modulm-platform-cpu", "chosen as 'cpu', which is core's own; there are: cuda, cpu"),
    ],
)
def test_names_that_cannot_be(kind, asked, words, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        TEMPLATES.write(kind, asked, tmp_path / "out", "MIT")
    assert f"NAME {asked!r} is refused" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_unknown_kind_or_licence_gets_the_nearest_name(tmp_path):
    with pytest.raises(ConfigError, match="KIND 'atention' is unknown. Did you mean 'attention'"):
        TEMPLATES.write("atention", "mine", tmp_path / "out", "MIT")
    with pytest.raises(ConfigError, match="license='Apache' is unknown. Did you mean 'Apache-2.0'"):
        TEMPLATES.write("attention", "mine", tmp_path / "out", "Apache")
    assert not (tmp_path / "out").exists()


def test_only_a_new_or_empty_folder_is_written_into(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert main(["plugins", "new", "general", "mine"]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["plugins", "new", "general", "mine"]) == 2
    assert "Folder 'mine' is refused: there are files in it." in capsys.readouterr().err
    assert main(["plugins", "new", "general", "other", "--path", "mine/README.md"]) == 2
    assert "is refused: it is a file." in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
