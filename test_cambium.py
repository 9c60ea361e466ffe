"""The integration suite: real git, real stdio, the real neighbours.

`python3 test_cambium.py [pytest arguments]`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cambium_server as cambium

HERE = Path(__file__).resolve().parent
SERVER = HERE / "cambium_server.py"

# ── People and places ───────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees the machine's HOME, git configuration, identity or cambium settings."""
    for name in list(os.environ):
        if name.startswith(("CAMBIUM_", "AGENTSYNC_", "CLAUDE_", "GIT_", "GH_", "XDG_")):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[user]\n\tname = Fixture\n\temail = fixture@example.invalid\n"
        '[init]\n\tdefaultBranch = main\n[gc]\n\tauto = 0\n[protocol "ext"]\n\tallow = always\n'
    )
    for name, value in {
        "HOME": str(home),
        "USERPROFILE": str(home),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "CAMBIUM_CONFIG_FILE": str(tmp_path / "config.json"),
        "CAMBIUM_FETCH_TTL": "0",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)
    yield
    cambium.opened.cache_clear()


def git(where: Path, *args: str) -> str:
    """Plain git, as a person or another program runs it; its output."""
    done = subprocess.run(["git", *args], cwd=where, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, f"git {args} in {where}: {done.stderr}"
    return done.stdout.strip()


def bare(path: Path, files: dict[str, str]) -> Path:
    """A bare remote whose `main` has one commit with these files."""
    git(path.parent, "init", "-q", "--bare", "-b", "main", path.name)
    seed = path.parent / f"seed-{path.stem}"
    git(path.parent, "init", "-q", "-b", "main", seed.name)
    for name, text in files.items():
        (seed / name).parent.mkdir(parents=True, exist_ok=True)
        (seed / name).write_text(text, encoding="utf-8")
    git(seed, "add", "-A")
    git(seed, "commit", "-q", "-m", "first")
    git(seed, "push", "-q", str(path), "main")
    return path


def clone(remote: Path, path: Path) -> Path:
    git(path.parent, "clone", "-q", str(remote), path.name)
    return path


@dataclass
class People:
    """Two people on one project, each with a clone of the org repo. `become` says who calls."""

    hub: Path
    ana: Path
    ben: Path
    org_hub: Path
    ana_org: Path
    ben_org: Path
    setenv: Callable[[str, str], None]

    def become(self, name: str, *, org: bool = True, **settings: str) -> None:
        self.setenv("CAMBIUM_REPO", str(getattr(self, name)))
        self.setenv("CAMBIUM_AGENT_ID", name)
        self.setenv("CAMBIUM_ORG_REPO", str(getattr(self, f"{name}_org")) if org else "")
        for key, value in settings.items():
            self.setenv(key, value)


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> People:
    """A bare hub cloned by ana and ben, an org hub cloned by both; ana is at the keyboard."""
    hub = bare(tmp_path / "heronry.git", {"README": "hello\n", "src/app.c": "int main(){}\n"})
    org_hub = bare(tmp_path / "knowledge.git", {"knowledge.json": '{"items": []}\n'})
    places = {name: clone(hub, tmp_path / name) for name in ("ana", "ben")}
    orgs = {f"{name}_org": clone(org_hub, tmp_path / f"{name}-org") for name in ("ana", "ben")}
    people = People(hub=hub, org_hub=org_hub, **places, **orgs, setenv=monkeypatch.setenv)
    people.become("ana")
    return people


def items_on(remote: Path, branch: str = "cambium") -> list[dict[str, Any]]:
    """The items on a branch of a bare remote, as any client of the format reads them."""
    return list(json.loads(git(remote, "show", f"{branch}:knowledge.json"))["items"])


def local_items(repo: Path) -> list[dict[str, Any]]:
    path = repo / ".cambium" / "knowledge.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["items"]) if path.exists() else []


def ids(items: list[dict[str, Any]]) -> set[str]:
    return {item["id"] for item in items}


def captured(content: str, **more: Any) -> str:
    """Capture as whoever is at the keyboard; the new item's id."""
    return str(cambium.capture(content, **more)["item"]["id"])


def on_team(content: str, note: str = "worked on two services", **more: Any) -> str:
    """Capture, endorse and promote to the team; the id."""
    item_id = captured(content, **more)
    cambium.endorse(item_id, note)
    assert cambium.promote(item_id)["status"] == "promoted"
    return item_id


# ── Parts ───────────────────────────────────────────────────────────────────


def test_the_module_imports_only_the_standard_library():
    code = "import sys, cambium_server; sys.exit('pydantic' in sys.modules or 'mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE).returncode == 0


if __name__ == "__main__":
    sys.exit(pytest.main([str(HERE / "test_cambium.py"), *sys.argv[1:]]))
