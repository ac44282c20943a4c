"""Published manifests, archives, links and workflows agree with the program."""

import base64
import importlib.util
import io
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

import memories

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
STDIO = {"command": "uvx", "args": ["memoriae", "mcp"]}


def tool(name: str) -> Any:
    """Import a module of `tools/`."""
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_registry_starts_this_version_with_uvx() -> None:
    server = json.loads((ROOT / "server.json").read_text())
    [package] = server["packages"]
    assert (server["version"], package["version"]) == (memories.__version__,) * 2
    assert (package["identifier"], package["runtimeHint"]) == ("memoriae", "uvx")
    assert "registryBaseUrl" not in package
    assert len(server["description"]) <= 100
    mark = f"<!-- mcp-name: {server['name']} -->"
    assert mark in (ROOT / "README.md").read_text()  # PyPI verifies the owner by this mark


def test_the_claude_desktop_bundle_has_every_tool_and_this_version() -> None:
    from memories.mcp.server import TOOLS

    bundles = tool("bundles").bundles()
    archive = zipfile.ZipFile(io.BytesIO(bundles[f"memories-{memories.__version__}.mcpb"]))
    manifest = json.loads(archive.read("manifest.json"))
    assert {tool["name"] for tool in manifest["tools"]} == set(TOOLS)
    assert manifest["server"]["entry_point"] in archive.namelist()
    project = tomllib.loads(archive.read("pyproject.toml").decode())["project"]
    assert project["dependencies"] == [f"memoriae=={memories.__version__}"]


def test_the_gemini_extension_is_at_the_root_of_its_archives() -> None:
    bundles = tool("bundles").bundles()
    assert bundles == tool("bundles").bundles()  # reproducible
    for system in ("linux", "darwin"):
        data = io.BytesIO(bundles[f"{system}.memories.tar.gz"])
        with tarfile.open(fileobj=data) as archive:
            assert "gemini-extension.json" in archive.getnames()
            assert archive.getmember("hooks/memory-hook.sh").mode & 0o100
    names = zipfile.ZipFile(io.BytesIO(bundles["win32.memories.zip"])).namelist()
    assert "gemini-extension.json" in names


def test_the_links_on_the_page_install_the_server() -> None:
    page = (ROOT / "docs" / "connect.md").read_text()
    [cursor] = re.findall(r"cursor://anysphere\.cursor-deeplink/mcp/install\?\S+", page)
    query = parse_qs(urlsplit(cursor.rstrip("`")).query)
    assert query["name"] == ["memories"]
    assert json.loads(base64.b64decode(query["config"][0])) == STDIO
    [code] = re.findall(r"https://insiders\.vscode\.dev/redirect\?url=\S+", page)
    target = parse_qs(urlsplit(code.rstrip("`")).query)["url"][0]
    scheme, _, config = target.partition("?")
    assert scheme == "vscode:mcp/install"
    assert json.loads(unquote(config)) == {"name": "memories", **STDIO}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_action_is_pinned_and_every_workflow_may_only_read(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"])


def test_the_tests_run_on_every_supported_system_and_python() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    matrix = jobs["install"]["strategy"]["matrix"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [each.split(" :: ")[-1] for each in classifiers if re.search(r":: 3\.\d+$", each)]
    assert matrix["python"] == versions
    assert [each.split("-")[0] for each in matrix["os"]] == ["ubuntu", "macos", "windows"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == versions


@pytest.mark.parametrize(("owner", "code"), [("OWNER", 1), ("acme", 0)])
def test_a_release_requires_the_name_of_the_owner(owner: str, code: int, tmp_path: Path) -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    [script] = [step["run"] for step in jobs["build"]["steps"] if "TAG" in step.get("env", {})]
    project = (ROOT / "pyproject.toml").read_text()
    address = re.sub(r"github\.com/[\w.-]+/", f"github.com/{owner}/", project)
    (tmp_path / "pyproject.toml").write_text(address)
    version = tomllib.loads(project)["project"]["version"]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "TAG": f"v{version}"}
    check = script.partition("python tools/plugins.py")[0]
    done = subprocess.run(
        ["bash", "-e", "-c", check], cwd=tmp_path, env=environment, check=False, timeout=60
    )
    assert done.returncode == code


def test_only_the_job_that_publishes_to_pypi_may_request_an_identity_token() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    trusted = {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert trusted == {"attest", "pypi"}
    assert jobs["pypi"]["environment"]["name"] == "pypi"
    assert jobs["pypi"]["steps"][-1]["with"]["attestations"] is True


@pytest.mark.parametrize("name", ["INSTALL_FOR_AGENTS.md", "llms.txt"])
def test_pages_for_agents_name_commands_and_files_that_exist(name: str) -> None:
    from memories.cli import COMMANDS
    from memories.connect.hosts import load_hosts

    text = (ROOT / name).read_text()
    assert set(re.findall(r"memoriae ([a-z]+)", text)) <= {*COMMANDS, "mcp"}
    for path in re.findall(r"blob/main/(\S+?)\)", text):
        assert (ROOT / path).is_file(), path
    assert all(host in text for host in load_hosts())
