"""Check that every package looks like every other: names, layout, metadata, entry points, ranges.

The rules are those of the plugin author's guide: one folder = one distribution = one import package. Reads files
only; imports and builds nothing. Where to look next: `check_isolated.py`, which builds and runs each package.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from workspace import ROOT, Package, expected_distribution, expected_import, packages, requirement_name

FILES = ("README.md", "CHANGELOG.md", "LICENSE")
VERSIONS = "modulm.interface_versions"
GROUPS = {
    "modulm.attention",
    "modulm.checkpoints",
    "modulm.executors",
    "modulm.kernels",
    "modulm.lora_resolvers",
    "modulm.models",
    "modulm.quantization",
    "modulm.reasoning_parsers",
    "modulm.speculators",
    "modulm.structured_output",
    "modulm.tool_parsers",
    "pytest11",
    "vllm.endpoint_plugins",
    "vllm.general_plugins",
    "vllm.io_processor_plugins",
    "vllm.logits_processors",
    "vllm.platform_plugins",
    "vllm.stat_logger_plugins",
}
IMPORTED_AS = {"opentelemetry-api": "opentelemetry", "pyyaml": "yaml", "pyzmq": "zmq"}
"""Distributions whose module has another name."""
ALSO_PROVIDES = {"compat-vllm": {"vllm"}}
"""Packages with import names beside their own."""
_ENTRY = re.compile(r"^(?P<module>[A-Za-z_][\w.]*):(?P<attribute>[A-Za-z_][\w.]*)$")
TEMPLATES = "modulm.templates"
_MODULES = {"pytest11"}
"""Groups whose entry points are modules."""
_RANGE = re.compile(r">=(\d+)\.(\d+)(?:\.\d+)?,<(\d+)\.(\d+)$")


def _names(package: Package) -> Iterator[str]:
    name = expected_distribution(package.folder)
    if package.distribution != name:
        yield f"project.name is {package.distribution!r}; the naming rule gives {name!r}"
    imported = expected_import(package.folder)
    source = package.path / "src"
    found = (
        sorted(p.name for p in source.iterdir() if p.is_dir() and p.name != "__pycache__") if source.exists() else []
    )
    wanted = [imported] if imported else []
    if found != wanted:
        yield f"src/ holds {found}; the naming rule gives {wanted}"


def _layout(package: Package) -> Iterator[str]:
    for name in FILES:
        file = package.path / name
        if not file.exists() or not file.read_text().strip():
            yield f"{name} is missing or empty"
    licence = package.path / "LICENSE"
    if licence.exists() and licence.read_text() != (package.path.parents[1] / "LICENSE").read_text():
        yield "LICENSE differs from the one at the root"
    imported = expected_import(package.folder)
    if imported and not (package.path / "src" / imported / "py.typed").exists():
        yield f"src/{imported}/py.typed is missing"
    if list(package.path.glob("tests/**/__init__.py")):
        yield "tests/ has an __init__.py; test files are found by path and need none"


def _metadata(package: Package) -> Iterator[str]:
    wanted = {
        "readme": "README.md",
        "license": "Apache-2.0",
        "license-files": ["LICENSE"],
        "requires-python": ">=3.11",
    }
    for key, value in wanted.items():
        if package.project.get(key) != value:
            yield f"project.{key} is {package.project.get(key)!r}, not {value!r}"
    if not re.fullmatch(r"\d+\.\d+\.\d+", package.version):
        yield f"project.version is {package.version!r}, not three numbers"
    if not package.project.get("description", "").endswith("."):
        yield "project.description is not a sentence"
    backend = "scikit_build_core.build" if package.is_native else "hatchling.build"
    if package.pyproject.get("build-system", {}).get("build-backend") != backend:
        yield f"build-system.build-backend is not {backend}"


def _defines(file: Path, attribute: str) -> bool:
    """Whether the module `file` defines or imports `attribute` at its top level."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return attribute.split(".")[0] in names


def _entry_points(package: Package) -> Iterator[str]:
    points = {**package.entry_points, "console_scripts": package.project.get("scripts", {})}
    for group, entries in points.items():
        if group == VERSIONS:
            yield from _versions(entries)
            continue
        if group not in GROUPS | {"console_scripts", TEMPLATES}:
            yield f"entry-point group {group!r} is unknown; there are {', '.join(sorted(GROUPS))}"
        for name, value in entries.items():
            match = _ENTRY.match(f"{value}:__doc__" if group in _MODULES else value)
            if match is None:
                yield f"entry point {name} = {value!r} of {group} is not 'module:attribute'"
                continue
            base = package.path / "src" / match["module"].replace(".", "/")
            files = [file for file in (base.with_suffix(".py"), base / "__init__.py") if file.exists()]
            if not files:
                yield f"entry point {name} of {group}: this package has no module {match['module']}"
            elif group not in _MODULES and not _defines(files[0], match["attribute"]):
                yield f"entry point {name} of {group}: {match['module']} has no {match['attribute']}"


def _versions(stated: dict[str, str]) -> Iterator[str]:
    for group, value in stated.items():
        if group not in GROUPS or not re.fullmatch(r"v\d+(:v\d+)?", value):
            yield f"{VERSIONS} {group!r} = {value!r} is not a contract and 'v1' or 'v1:v2'"


def _imports(package: Package) -> Iterator[str]:
    declared = {requirement_name(line) for line in package.requirements}
    imported = {each for n in declared for each in (IMPORTED_AS.get(n, n.replace("-", "_")), n.replace("-", ""))}
    own = {expected_import(package.folder), *ALSO_PROVIDES.get(package.folder, ())}
    known = {*sys.stdlib_module_names, *imported, *own}
    known |= {"modulm"} if "modulm-core" in declared else set()
    for file in sorted(package.path.glob("src/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            for module in modules:
                if module.split(".")[0] not in known:
                    yield f"{file.relative_to(package.path)} imports {module}, which no dependency declares"


def _ranges(package: Package, ours: dict[str, Package]) -> Iterator[str]:
    if package.folder != "core" and not any(requirement_name(r) == "modulm-core" for r in package.requirements):
        yield "does not depend on modulm-core"
    for line in package.requirements:
        other = ours.get(requirement_name(line))
        if other is None:
            continue
        clauses = re.sub(r"^[A-Za-z0-9._-]+(\[[^]]*\])?", "", line.split(";")[0].replace(" ", ""))
        match = _RANGE.match(clauses)
        if match is None or (match[1], int(match[2]) + 1) != (match[3], int(match[4])):
            yield f"{line!r} is not of the form >=X.Y,<X.(Y+1)"
        elif other.version.split(".")[:2] != [match[1], match[2]]:
            yield f"{line!r} leaves out {other.distribution} {other.version} of this workspace"


def _contracts(package: Package, importlinter: dict[str, object]) -> Iterator[str]:
    imported = expected_import(package.folder)
    if imported and imported not in importlinter["root_packages"]:  # type: ignore[operator]
        yield f"{imported} is not among tool.importlinter.root_packages of the root pyproject.toml"


def problems(root: Path = ROOT) -> list[str]:
    """Return one line for each rule broken, `folder: rule`."""
    found = packages(root)
    ours = {package.distribution: package for package in found}
    importlinter = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    lines = []
    for package in found:
        for rule in (_names, _layout, _metadata, _entry_points, _imports):
            lines += [f"{package.folder}: {line}" for line in rule(package)]
        lines += [f"{package.folder}: {line}" for line in _ranges(package, ours)]
        lines += [f"{package.folder}: {line}" for line in _contracts(package, importlinter)]
    return lines


def main() -> int:
    """Run the tool; see `--help`."""
    argparse.ArgumentParser(description="Check names, layout and metadata of every package.").parse_args()
    found = problems()
    print(
        "\n".join(found) if found else f"{len(packages())} packages: names, layout and metadata are as they should be"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
