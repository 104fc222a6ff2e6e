"""docs/extend: what a page shows is what happens. Its blocks make a package, which is built, installed and used.

A block that begins with a comment naming a file is that file; other blocks of Python and shell run in order, in
processes of their own, in the package's folder. A `text` block is what the one before it prints, `...` being anything.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [path for path in sorted((ROOT / "docs/extend").glob("*.md")) if "pyproject.toml\n" in path.read_text()]
PIP = """#!{python}
# `pip install -e .` of these pages, without an index: the wheel is built, and unpacked where PYTHONPATH says.
import pathlib, subprocess, sys, zipfile
assert sys.argv[1:] == ["install", "-e", "."], sys.argv
subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"], check=True, stdout=2)
for wheel in pathlib.Path("dist").glob("*.whl"):
    zipfile.ZipFile(wheel).extractall({site!r})
"""


def blocks(page):
    """Return (language, text) of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.S | re.M)


def file_of(text):
    """Return the file that a block is, or None."""
    found = re.match(r"# ([\w./-]+\.\w+)\n", text)
    return found and found[1]


def pattern(text):
    """Blanks in a row are as one, and `...` is anything, lines included."""
    parts = [re.escape(" ".join(part.split())).replace(r"\ ", r"\s+") for part in text.split("...")]
    return r"[\s\S]*?".join(parts)


class Reader:
    """Somebody who does what a page says, in an environment of their own."""

    def __init__(self, folder):
        self.folder = folder / "package"
        self.folder.mkdir()
        tools, site = folder / "bin", folder / "site"
        tools.mkdir()
        (tools / "pip").write_text(PIP.format(python=sys.executable, site=str(site)))
        (tools / "pip").chmod(0o755)
        path = [str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MODULM_", "VLLM_"))}
        own = {"PATH": os.pathsep.join(path), "PYTHONPATH": str(site), "MODULM_CACHE_DIR": str(folder / "cache")}
        self.environment = {**clean, **own, "MODULM_STRICT_PLUGINS": "1", "HF_HUB_OFFLINE": "1"}
        self.printed = ""

    def does(self, language, text):
        name = file_of(text)
        if name:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        elif language == "text":
            assert re.search(pattern(text), self.printed), f"expected:\n{text}\nprinted:\n{self.printed}"
        else:
            self.run({"python": [sys.executable, "-c"], "sh": [shutil.which("sh"), "-e", "-c"]}[language], text)

    def run(self, command, text):
        done = subprocess.run(
            [*command, text], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        self.printed = done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_reader_who_does_what_the_page_says_succeeds(page, tmp_path):
    reader = Reader(tmp_path)
    for language, text in blocks(page):
        reader.does(language, text)


def test_there_are_pages():
    assert {page.stem for page in PAGES} >= {"attention"}
