#!/usr/bin/env python3
"""Breaks cambium on purpose and counts what was lost.

`python3 tools/bench_faults.py [--trials N] [--seed N] [--only NAME,…] [--short] [--json]`

Real processes work on real git remotes in a temporary directory, under a HOME and a git
configuration of their own. Nothing touches the network; no process, mount or directory stays.

    kill-*    one process works, is killed with SIGKILL, and everything it said it did must be
              there; then every tool is called again. Every other trial kills at a random moment,
              the rest in turn right before and right after each step of the work: a git call, a
              replaced, synced or removed file. In half of the trials the git it had started dies
              too, as in a power cut or an out-of-memory kill; otherwise that goes on alone. The
              remote's side of a connection always lives: it is another machine.
    locks     each lock file that a git killed at the wrong moment leaves is put there
    crowd-*   many processes write, read, distill and promote at the same time
    disk-*    the store's disk is full, or its folder read-only

What the columns count:

    acknowledged   items (recalls, in kill-fold) whose call had answered
    lost           acknowledged items found nowhere, or seeded ones; recalls never counted
    doubled        items found twice once the next call has mended what was half done; recalls
                   counted more often than they happened
    unreadable     moments at which a store was not valid JSON
    stuck          calls that failed, took longer than BOUND, or were refused and yet changed
                   something; files of the user's that changed; locks and processes left behind
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Call = tuple[str, Json]  # a tool's name and its arguments

CHECKOUT = Path(__file__).resolve().parent.parent
SERVER = CHECKOUT / "cambium_server.py"
TOLD = 12  # faults that the table spells out for each scenario; --json has all
BOUND = 20.0  # seconds that one call may take after a crash
PATIENCE = 120.0  # seconds that one call may take in a crowd
REMOTE_SIDE = ("receive-pack", "upload-pack", "index-pack", "unpack-objects", "hooks/")

GITCONFIG = (
    "[user]\n\tname = Bench\n\temail = bench@example.invalid\n"
    "[init]\n\tdefaultBranch = main\n[gc]\n\tauto = 0\n"
)

# ── Counting ──────────────────────────────────────────────────────────────────


@dataclass
class Row:
    """One line of the table. `faults` says each fault in words, `notes` what else is worth it."""

    scenario: str
    trials: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    unreadable: int = 0
    stuck: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    COUNTED = ("lost", "doubled", "unreadable", "stuck")

    def fault(self, kind: str, what: str, times: int = 1) -> None:
        setattr(self, kind, getattr(self, kind) + times)
        self.faults.append(f"{kind}: {what}")

    @property
    def clean(self) -> bool:
        return not any(getattr(self, kind) for kind in self.COUNTED)

    def add(self, other: Row) -> None:
        for name in ("trials", "acknowledged", *self.COUNTED):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults
        self.notes += other.notes


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text, then what was found."""
    heads = ("scenario", "trials", "acknowledged", *Row.COUNTED, "seconds")
    lines = [heads] + [
        (*(str(getattr(row, head)) for head in heads[:-1]), f"{row.seconds:.1f}") for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    shown += [f"{row.scenario}: {note}" for row in rows for note in row.notes]
    for row in rows:
        shown += [f"{row.scenario}: {fault[:600]}" for fault in row.faults[:TOLD]]
        shown += [f"{row.scenario}: … and {len(row.faults) - TOLD} more"] * (len(row.faults) > TOLD)
    return "\n".join(shown)


# ── Worlds ────────────────────────────────────────────────────────────────────
# A world is a directory: a project's hub, its clones, an org's hub and a clone of that. It is made
# once and copied for each trial.


def git(where: Path, *args: str, home: Path) -> str:
    """Plain git as a person runs it; its output."""
    done = subprocess.run(
        ["git", *args], cwd=where, env=base_environ(home), capture_output=True, encoding="utf-8"
    )
    if done.returncode:
        raise RuntimeError(f"git {' '.join(args)} in {where}: {done.stderr}")
    return done.stdout.strip()


def base_environ(home: Path) -> dict[str, str]:
    """An environment that knows nothing of this machine's users."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return kept | {
        "HOME": str(home),
        "TMPDIR": str(home),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "CAMBIUM_CONFIG_FILE": str(home / "config.json"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@dataclass(frozen=True)
class World:
    """Where everything is. `mark` is in the environment of every process that works here."""

    root: Path
    mark: str = ""

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def hub(self) -> Path:
        return self.root / "heronry.git"

    @property
    def org_hub(self) -> Path:
        return self.root / "knowledge.git"

    def clone(self, who: str) -> Path:
        return self.root / who

    @property
    def org(self) -> Path:
        return self.root / "ana-org"

    @property
    def store(self) -> Path:
        return self.clone("ana") / ".cambium" / "knowledge.json"

    def environ(self, who: str, agent: str = "") -> dict[str, str]:
        org = {"CAMBIUM_ORG_REPO": str(self.org)} if self.org.exists() else {}
        return base_environ(self.home) | {
            "CAMBIUM_REPO": str(self.clone(who)),
            "CAMBIUM_AGENT_ID": agent or who,
            "BENCH_MARK": self.mark or str(self.root),
            **org,
        }

    def git(self, where: Path, *args: str) -> str:
        return git(where, *args, home=self.home)

    def copied(self, root: Path) -> World:
        """A copy of this world at `root`, replacing what is there."""
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.root, root, symlinks=True)
        for config in root.glob("*/.git/config"):
            config.write_text(config.read_text().replace(f"{self.root}/", f"{root}/"))
        return World(root, f"{root.name}-{uuid.uuid4().hex}")


def bare(world: World, hub: Path, files: Mapping[str, str]) -> None:
    """A bare remote whose main has one commit with these files; without any it is empty."""
    world.git(world.root, "init", "-q", "--bare", "-b", "main", hub.name)
    shutil.rmtree(hub / "hooks", ignore_errors=True)
    if not files:
        return
    seed = world.root / "seed"
    world.git(world.root, "init", "-q", "-b", "main", seed.name)
    for name, text in files.items():
        (seed / name).parent.mkdir(parents=True, exist_ok=True)
        (seed / name).write_text(text, encoding="utf-8")
    world.git(seed, "add", "-A")
    world.git(seed, "commit", "-q", "-m", "first")
    world.git(seed, "push", "-q", str(hub), "main")
    shutil.rmtree(seed)


def clone(world: World, hub: Path, name: str) -> Path:
    world.git(world.root, "clone", "-q", str(hub), name)
    path = world.root / name
    shutil.rmtree(path / ".git" / "hooks", ignore_errors=True)
    return path


def empty_world(root: Path, *clones: str) -> World:
    """Hubs and clones that cambium has never seen."""
    root.mkdir()
    world = World(root)
    world.home.mkdir()
    (world.home / ".gitconfig").write_text(GITCONFIG)
    bare(world, world.hub, {"README": "hello\n", "src/app.c": "int main(){}\n"})
    bare(world, world.org_hub, {"knowledge.json": '{"items": []}\n'})
    for name in clones or ("ana",):
        clone(world, world.hub, name)
    clone(world, world.org_hub, "ana-org")
    return world


# Every item of a bench carries a word of its own, so it is known again under any id and wording.
WORD = re.compile(r"\blemma\d{4}\b")
LOCAL, TEAM, ORG = (
    [f"lemma{n:04}" for n in span] for span in (range(4), range(10, 14), range(20, 22))
)
CLAIMS, DECISIONS = ([f"lemma{n:04}" for n in span] for span in (range(30, 33), range(40, 43)))
SEEDED = [*LOCAL, *TEAM, *ORG]


def rule(word: str) -> str:
    return f"Queues of the {word} family want a bound, so that back pressure is seen early."


def seeded_world(root: Path) -> World:
    """A world with four local, four team and two org items, all endorsed, a board with three
    finished claims and three decisions of context-keeper."""
    world = empty_world(root)
    with Child(world.environ("ana")) as child:

        def done(tool: str, **arguments: Any) -> Json:
            answer = child.ask((tool, arguments), PATIENCE)
            if "error" in answer:
                raise RuntimeError(f"seeding failed: {tool}: {answer}")
            return dict(answer["result"])

        held = {w: done("capture", content=rule(w))["item"]["id"] for w in (*ORG, *TEAM, *LOCAL)}
        for item_id in held.values():
            done("endorse", item_id=item_id, note="worked on two services")
        for word in (*ORG, *TEAM):
            done("promote", item_id=held[word])
        for word in ORG:
            done("promote", item_id=held[word], to_scope="org")
    claims = {
        f"bot-{word}": {"task": f"mend {word}", "status": "done", "note": f"{word} is mended"}
        for word in CLAIMS
    }
    board = world.root / "board"
    world.git(world.root, "clone", "-q", str(world.hub), board.name)
    world.git(board, "checkout", "-q", "--orphan", "agentsync")
    world.git(board, "rm", "-rfq", ".")
    (board / "claims.json").write_text(json.dumps({"claims": claims}))
    world.git(board, "add", "-A")
    world.git(board, "commit", "-q", "-m", "board")
    world.git(board, "push", "-q", "origin", "agentsync")
    shutil.rmtree(board)
    decisions = [
        {"id": f"dec-{n:03}", "summary": f"We chose {word}.", "rationale": "it is bounded"}
        for n, word in enumerate(DECISIONS, 1)
    ]
    (world.clone("ana") / ".context").mkdir()
    (world.clone("ana") / ".context" / "decisions.json").write_text(json.dumps(decisions))
    return world


def the_seed(root: Path) -> World:
    """The seeded world that all scenarios under `root` copy, made by the first."""
    return World(root / "seeded") if (root / "seeded").exists() else seeded_world(root / "seeded")


def held_items(text: bytes | str) -> list[Json]:
    """The items of a knowledge.json as any client reads them. Raises ValueError."""
    items = json.loads(text)["items"]
    if not all(isinstance(item, dict) and item.get("id") for item in items):
        raise ValueError("an item is not one")
    return list(items)


def branch_text(world: World, hub: Path, branch: str) -> str:
    names = world.git(hub, "for-each-ref", "--format=%(refname:short)", f"refs/heads/{branch}")
    has = names and world.git(hub, "ls-tree", "--name-only", branch, "knowledge.json")
    return world.git(hub, "show", f"{branch}:knowledge.json") if has else '{"items": []}'


Census = dict[str, list[Json]]


def census(world: World, row: Row, about: str) -> Census:
    """Every item of every scope; a store that cannot be read is a fault."""
    found: Census = {}
    readers: dict[str, Callable[[], bytes | str]] = {
        "team": lambda: branch_text(world, world.hub, "cambium"),
        "org": lambda: branch_text(world, world.org_hub, "main"),
    }
    for who in sorted(path.parent.parent for path in world.root.glob("*/.cambium/knowledge.json")):
        readers[f"local {who.name}"] = (who / ".cambium" / "knowledge.json").read_bytes
    for scope, read in readers.items():
        try:
            found[scope] = held_items(read())
        except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
            found[scope] = []
            row.fault("unreadable", f"{scope} {about}: {error}")
    for aside in world.root.glob("*/.cambium/knowledge.json.corrupt-*"):
        row.fault("unreadable", f"{about}: a store was put aside as {aside.name}")
    return found


def words_of(item: Json) -> set[str]:
    return set(WORD.findall(f"{item.get('content')} {item.get('example')}"))


def places(found: Census) -> dict[str, list[tuple[str, str]]]:
    """Where each word is: its scopes and the ids it has there."""
    where = defaultdict(list)
    for scope, items in found.items():
        for item in items:
            for word in words_of(item):
                where[word].append((scope, str(item["id"])))
    return where


def settled(found: Census, wanted: Iterable[str], row: Row, about: str, *, half: bool) -> None:
    """Each wanted item is there, and no item is there twice. With `half`, a promotion may have been
    cut short between its two writes: one id in two scopes."""
    where = places(found)
    for word in sorted(set(wanted) - set(where)):
        row.fault("lost", f"{word} {about}")
    for word, spots in sorted(where.items()):
        scopes, ids = zip(*spots, strict=True)
        twice = len(set(scopes)) < len(spots) or len(set(ids)) > 1
        if twice or (len(spots) > 1 and not half):
            row.fault("doubled", f"{word} {about}: {spots}")


def footprint(repo: Path) -> dict[str, str]:
    """What a person sees of a clone, byte for byte: files, index, HEAD, configuration, branches."""
    own = repo / ".git"
    kept = [own / name for name in ("index", "HEAD", "config", "packed-refs", "ORIG_HEAD")]
    kept += [path for part in ("heads", "tags", "stash") for path in (own / "refs" / part,)]
    files = [each for path in kept for each in ([path] if path.is_file() else path.rglob("*"))]
    files += [
        path
        for path in repo.rglob("*")
        if not {".git", ".cambium"} & set(path.relative_to(repo).parts)
    ]
    seen = {
        str(path.relative_to(repo)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.is_file()
    }
    return seen | {f".git/{path.name}": "left" for path in own.glob("*.lock")}


def unlike(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


# ── Children ──────────────────────────────────────────────────────────────────
# `bench_faults.py --child` is a process that makes the calls it reads, one JSON line each, and
# acknowledges each on a line of its own once it is done.


def child_main() -> int:
    """Read calls, make them, acknowledge them; at the end of input, leave as any program does."""
    sys.path.insert(0, str(CHECKOUT))
    import cambium_server as cambium

    def promote_some() -> Json:
        local = cambium.here().scopes.local.read().items
        for item in random.sample(local, min(2, len(local))):
            with contextlib.suppress(cambium.NotFound):
                cambium.endorse(item.id, "seen to work")
        return dict(cambium.promote())

    def deliver() -> Json:
        """Count recalls now; what a session's end and the debounce do."""
        cambium.here().scopes.delivered_at = float("-inf")
        cambium.here().scopes.deliver()
        return {"pending": len(cambium.here().scopes.uncounted("local"))}

    def fresh(*, quiet: bool) -> Json:
        """Forget every store, as a new process would; with `quiet` nothing is counted later."""
        cambium.opened_once.cache_clear()
        if quiet:
            cambium.Scopes.deliver_later = lambda self: None  # type: ignore[method-assign]
        return {}

    passed = itertools.count(1)

    def die_at(step: int) -> Json:
        """Die by SIGKILL at this moment of the work, counted from here; at 0 only count them."""

        def moment() -> None:
            if next(passed) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        def stepped(work: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **more: Any) -> Any:
                moment()
                done = work(*args, **more)
                moment()
                return done

            return counted

        cambium.run = stepped(cambium.run)
        for name in ("replace", "fsync", "unlink"):
            setattr(os, name, stepped(getattr(os, name)))
        return {}

    def moments() -> Json:
        """How many moments there were until here; leaving has some more."""
        return {"moments": next(passed) - 1}

    own: dict[str, Callable[..., Json]] = {
        "promote_some": promote_some,
        "deliver": deliver,
        "fresh": fresh,
        "die_at": die_at,
        "moments": moments,
    }

    def answer(tool: str, arguments: Json) -> Json:
        begun = time.monotonic()
        try:
            result = own[tool](**arguments) if tool in own else cambium.TOOLS[tool].call(arguments)
            told: Json = {"result": result}
        except cambium.CambiumError as error:
            told = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            told = {"error": f"not a CambiumError: {error!r}"}
        return told | {"tool": tool, "took": round(time.monotonic() - begun, 3)}

    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        calls, until = asked["calls"], asked.get("until")
        for tool, arguments in itertools.cycle(calls) if until else calls:
            if until and os.path.exists(until):
                break
            print(json.dumps(answer(tool, arguments), default=str), flush=True)
    return 0


class Child:
    """A process that makes calls. It is the leader of its own process group."""

    def __init__(self, environ: Mapping[str, str], *, user: int | None = None) -> None:
        argv = [sys.executable, str(Path(__file__).resolve()), "--child"]
        self.mark = environ["BENCH_MARK"]
        self.process = subprocess.Popen(
            [*as_user(user), *argv],
            env=dict(environ),
            cwd=CHECKOUT.anchor,  # a directory that stays: HOME goes with its trial
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            start_new_session=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        if self.lines.get(timeout=PATIENCE) != "ready\n":
            raise RuntimeError("a child did not start")

    def read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.put(line)
        self.lines.put("")

    def send(self, calls: Sequence[Call], *, until: Path | None = None, last: bool = False) -> None:
        pipe = self.process.stdin
        assert pipe
        pipe.write(json.dumps({"calls": calls, "until": str(until) if until else None}) + "\n")
        pipe.flush()
        if last:
            pipe.close()

    def ask(self, call: Call, bound: float) -> Json:
        """One call's answer; an error where it takes longer than `bound`."""
        self.send([call])
        try:
            line = self.lines.get(timeout=bound)
        except queue.Empty:
            return {"error": f"no answer within {bound:g} s", "tool": call[0], "took": bound}
        return dict(json.loads(line)) if line else {"error": "it died", "tool": call[0], "took": 0}

    def answers(self) -> list[Json]:
        """What it acknowledged until it ended. A line that was cut short acknowledges nothing."""
        self.process.wait()
        self.reader.join()
        told = [self.lines.get() for _ in range(self.lines.qsize())]
        return [json.loads(line) for line in told if line.endswith("\n")]

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()


def as_user(user: int | None) -> list[str]:
    told = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return [] if user is None else ["setpriv", *told]


def marked(mark: str, *, remote: bool = True) -> list[int]:
    """The processes with this mark; without `remote`, only those of the clone's side."""
    found = []
    wanted = f"BENCH_MARK={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted not in (path / "environ").read_bytes().split(b"\0"):
                continue
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            away = any(word in line for word in REMOTE_SIDE) or ".git" in os.readlink(path / "cwd")
            if line and (remote or not away):
                found.append(int(path.name))
    return found


def kill_tree(child: Child) -> None:
    """Kill the process and every git it started, whatever session that is in."""
    before = marked(child.mark, remote=False)
    child.kill()
    for _ in range(3):
        for pid in {*before, *marked(child.mark, remote=False)}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        before = []


def kill_after(delay: float, kill_it: Callable[[Child], None], child: Child) -> None:
    time.sleep(delay)
    kill_it(child)


def kill_when_dead(kill_it: Callable[[Child], None], child: Child) -> None:
    """The child dies at a moment of its own; what it started may die with it."""
    child.process.wait()
    kill_it(child)


def wait_for_silence(mark: str, row: Row, about: str) -> None:
    """What a killed process leaves running ends by itself, soon."""
    end = time.monotonic() + BOUND
    while marked(mark):
        if time.monotonic() > end:
            left = marked(mark)
            row.fault("stuck", f"{about}: processes left behind: {left}")
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)


# ── Kill ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Operation:
    """What the victim does, what must be true once it is called again, and of which items."""

    name: str
    calls: Callable[[Mapping[str, str]], list[Call]]  # from the ids of the seeded words
    again: Callable[[Mapping[str, str]], list[Call]]
    complete: Mapping[str, str]  # word -> the scope it is in after that
    restated: tuple[str, ...] = ()


NEW = [f"lemma{n:04}" for n in range(100, 112)]


def capture_calls(ids: Mapping[str, str]) -> list[Call]:
    return [("capture", {"content": rule(word)}) for word in NEW]


def promote_calls(ids: Mapping[str, str]) -> list[Call]:
    a, b, *_ = LOCAL
    return [("promote", {"item_id": ids[a]}), ("promote", {"item_id": ids[b]}), ("promote", {})]


def org_calls(ids: Mapping[str, str]) -> list[Call]:
    a, b, *_ = TEAM
    up = {"to_scope": "org"}
    restated = {"org_content": f"Bound every queue: {b} shows why."}
    return [
        ("promote", {"item_id": ids[a], **up}),
        ("promote", {"item_id": ids[b], **up, **restated}),
        ("promote", up),
    ]


def restatement(word: str) -> str:
    return f"Every queue has a limit, says {word}."


def generalize_calls(ids: Mapping[str, str]) -> list[Call]:
    chosen = (TEAM[0], ORG[0], TEAM[1])
    return [("generalize", {"item_id": ids[w], "org_content": restatement(w)}) for w in chosen]


def fold_calls(ids: Mapping[str, str]) -> list[Call]:
    """Recalls of a local item that climbs meanwhile, and of a team item; counted in between."""
    asked = [("recall", {"query": f"{word} queues", "limit": 1}) for word in (LOCAL[0], TEAM[0])]
    fold: Call = ("deliver", {})
    up: Call = ("promote", {"item_id": ids[LOCAL[0]]})
    return [*asked, fold, *asked, up, *asked, fold, *asked]


OPERATIONS = {
    each.name: each
    for each in (
        Operation("capture", capture_calls, lambda ids: [("capture", {"content": "More."})], {}),
        Operation("promote", promote_calls, promote_calls, dict.fromkeys(LOCAL, "team")),
        Operation(
            "distill",
            lambda ids: [("distill", {}), ("distill", {})],
            lambda ids: [("distill", {})],
            dict.fromkeys((*CLAIMS, *DECISIONS), "local ana"),
        ),
        Operation(
            "fold",
            fold_calls,
            lambda ids: [("review_promotions", {}), ("deliver", {}), ("deliver", {})],
            {},
        ),
        Operation("org", org_calls, org_calls, dict.fromkeys(TEAM, "org")),
        Operation("generalize", generalize_calls, generalize_calls, {}, (TEAM[0], ORG[0], TEAM[1])),
    )
}


def probes(ids: Mapping[str, str], turn: int) -> Iterator[Call]:
    """Calls on items that no operation works on: always one that writes each store, and in turn
    a third of all other tools."""
    team, org = {"item_id": ids[TEAM[3]]}, {"item_id": ids[ORG[1]]}
    others: list[Call] = [
        ("status", {}),
        ("record_need", {"content": "The bench needs an answer from record_need."}),
        ("session_primer", {}),
        ("recall", {"query": f"{LOCAL[3]} queues"}),
        ("distill", {}),
        ("endorse", {**team, "note": "again"}),
        ("verify_entry", {**org, "note": "again"}),
        ("generalize", {**org, "org_content": f"Nothing grows without a limit, says {ORG[1]}."}),
        ("review_promotions", {}),
        ("stale_report", {}),
        ("export_markdown", {}),
        ("deprecate", {**org, "reason": "the bench is done with it"}),
    ]
    yield from others[turn % 3 :: 3]
    yield "capture", {"content": "A probe of the bench says: nothing hangs."}
    yield "promote", {"item_id": ids[LOCAL[3]]}
    yield "promote", {**team, "to_scope": "org"}


def promised(done: Iterable[Json]) -> set[str]:
    """The words whose items the victim said it stored."""
    told = [(each["result"].get("item"), each["result"].get("items")) for each in done
            if each["tool"] in ("capture", "distill")]  # fmt: skip
    return set(WORD.findall(json.dumps(told)))


def lifted(answer: Json) -> tuple[str, list[str]]:
    """Where a promotion said that it put which items."""
    result = answer["result"]
    if answer["tool"] != "promote" or result.get("status") != "promoted":
        return "", []
    items = result.get("items") or [result.get("item") or {}]
    return str(result["to"]), [item["id"] for item in items if "id" in item]


def acknowledged(operation: Operation, done: Sequence[Json]) -> int:
    """How much the victim said it did: items stored, lifted, restated, or recalls given."""
    stored = len(promised(done))
    moved = sum(len(lifted(answer)[1]) for answer in done)
    other = {"generalize": "generalize", "fold": "recall"}.get(operation.name)
    return stored + moved + len([each for each in done if each["tool"] == other])


def stands(found: Census, done: Sequence[Json], row: Row, about: str) -> None:
    """What the victim said it lifted or restated is so before anybody calls again."""
    for answer in done:
        scope, ids = lifted(answer)
        above = {item["id"] for at in ("team", "org") for item in found[at]}
        for item_id in set(ids) - above:
            row.fault("lost", f"{item_id} did not reach {scope} {about}")
        if answer["tool"] == "generalize":
            texts = {item["content"] for items in found.values() for item in items}
            if answer["result"]["content"] not in texts:
                row.fault("lost", f"a restatement {about}: {answer['result']['content']}")


def recalls(found: Census) -> Counter[str]:
    """How often each item was recalled, as its stores count."""
    counts: Counter[str] = Counter()
    for items in found.values():
        for item in items:
            counts[item["id"]] = max(counts[item["id"]], item["trust"]["recalls"])
    return counts


@dataclass
class Slot:
    """A place where one trial after another happens, and the process that looks afterwards."""

    seed: World
    root: Path
    checker: Child | None = None
    trials: int = 0

    def calm(self, operation: Operation) -> tuple[Row, int]:
        """The trial without a kill: how long it takes, and how many moments it has."""
        row, told = self.trial(operation, lambda victim: None, "unharmed", step=0)
        moments: int = told[-1]["result"]["moments"]
        return row, moments

    def trial(
        self, operation: Operation, harm: Callable[[Child], None], about: str, step: int | None
    ) -> tuple[Row, list[Json]]:
        """One kill and everything that is checked after it. The row's seconds are the victim's."""
        row = Row(f"kill-{operation.name}", trials=1)
        world = self.seed.copied(self.root)
        before = census(world, row, "at first")
        ids = {word: item["id"] for items in before.values() for item in items
               for word in words_of(item)}  # fmt: skip
        seen = footprint(world.clone("ana"))
        calls = operation.calls(ids)
        with Child(world.environ("ana")) as victim:
            counting: list[Call] = [("die_at", {"step": step})] if step is not None else []
            victim.send([*counting, *calls, *[("moments", {})] * bool(counting)], last=True)
            begun = time.monotonic()
            harm(victim)
            told = victim.answers()
            row.seconds = time.monotonic() - begun
        answers = [each for each in told if each["tool"] not in ("die_at", "moments")]
        about += f", {len(answers)} of {len(calls)} calls done"
        for answer in answers:
            if "error" in answer:
                row.fault("stuck", f"{answer['tool']} before the kill {about}: {answer['error']}")
        done = [each for each in answers if "result" in each]
        wanted = {*SEEDED, *promised(done)}
        row.acknowledged = acknowledged(operation, done)
        found = census(world, row, about)
        settled(found, wanted, row, f"at once {about}", half=True)
        stands(found, done, row, f"at once {about}")
        self.after(world, operation, ids, wanted, (before, answers), row, about)
        for name in unlike(seen, footprint(world.clone("ana"))):
            row.fault("stuck", f"{about}: {name} of the user's checkout changed")
        self.org_checkout(world, row, about)
        wait_for_silence(world.mark, row, about)
        return row, told

    def after(
        self,
        world: World,
        operation: Operation,
        ids: Mapping[str, str],
        wanted: set[str],
        history: tuple[Census, list[Json]],
        row: Row,
        about: str,
    ) -> None:
        """The next calls work and mend what was half done; then every tool works."""
        self.call(world, ("fresh", {"quiet": True}), row, about)
        for call in (*operation.again(ids), ("review_promotions", {})):
            self.call(world, call, row, about)
        found = census(world, row, f"mended {about}")
        settled(found, {*wanted, *operation.complete}, row, f"mended {about}", half=False)
        where = places(found)
        for word, scope in operation.complete.items():
            if where[word] and scope not in [at for at, _ in where[word]]:
                row.fault("stuck", f"{word} is in {where[word]} and not in {scope}, {about}")
        for word in operation.restated:
            texts = [i for items in found.values() for i in items if word in words_of(i)]
            if [(i["content"], i.get("example")) for i in texts] != [
                (restatement(word), rule(word))
            ]:
                row.fault("lost", f"{word} is not restated {about}: {texts}")
        if operation.name == "fold":
            count_recalls(*history, found, row, about)
        self.trials += 1
        for call in probes(ids, self.trials):
            self.call(world, call, row, about)
        found = census(world, row, f"in the end {about}")
        settled(found, {*wanted, *operation.complete}, row, f"in the end {about}", half=False)

    def call(self, world: World, call: Call, row: Row, about: str) -> None:
        """One call in the process that looks afterwards; it is another one after a hang."""
        if not self.checker:
            # It outlives the trial, so it does not carry the trial's mark.
            self.checker = Child(world.environ("ana") | {"BENCH_MARK": f"checker-{self.root}"})
        answer = self.checker.ask(call, BOUND)
        warned = [
            text
            for text in answer.get("result", {}).get("warnings") or []
            if "left for the next call" in text
        ]
        if "error" in answer or warned:
            told = answer.get("error") or "; ".join(warned)
            row.fault("stuck", f"{call[0]} {about}: {told}")
        if "no answer" in answer.get("error", "") or "it died" in answer.get("error", ""):
            self.close()

    def org_checkout(self, world: World, row: Row, about: str) -> None:
        """The org clone is a clean checkout, which may have followed its branch, without locks."""
        for lock in (*world.org.glob(".git/*.lock"), *world.org.glob(".git/refs/**/*.lock")):
            row.fault("stuck", f"{about}: {lock.relative_to(world.root)} is left")
        dirty = world.git(world.org, "--no-optional-locks", "status", "--porcelain")
        if dirty:
            row.fault("stuck", f"{about}: the org checkout is not clean: {dirty}")

    def close(self) -> None:
        if self.checker:
            self.checker.__exit__()
            self.checker = None


def count_recalls(
    before: Census, answers: Sequence[Json], found: Census, row: Row, about: str
) -> None:
    """Every acknowledged recall is counted, and none twice; where one was under way when all ended,
    it may count."""
    was, now = recalls(before), recalls(found)
    told: Counter[str] = Counter()
    for answer in answers:
        result = answer.get("result", {})
        if answer["tool"] == "recall" and not result.get("no_confident_match"):
            told.update(hit["id"] for hit in result["results"] if hit["scope"] != "org")
    started = Counter(told)
    under_way = [tool for tool, _ in fold_calls(defaultdict(str))[len(answers) :][:1]]
    if under_way == ["recall"]:
        started.update({*told, *now})
    for item_id in {*was, *now}:
        gained = now[item_id] - was[item_id]
        if gained < told[item_id]:
            row.fault("lost", f"{gained} of {told[item_id]} recalls of {item_id} {about}",
                      told[item_id] - gained)  # fmt: skip
        if gained > started[item_id]:
            row.fault("doubled", f"{gained} of {started[item_id]} recalls of {item_id} {about}",
                      gained - started[item_id])  # fmt: skip


def kill(root: Path, name: str, trials: int, seed: int) -> Row:
    """`trials` kills of one operation, on two slots at a time."""
    operation, begun = OPERATIONS[name], time.monotonic()
    row = Row(f"kill-{name}")
    world = the_seed(root)
    slots = [Slot(world, root / f"{name}-{n}") for n in range(min(2, os.cpu_count() or 1))]
    lock = threading.Lock()
    turns, enough = iter(range(trials)), threading.Event()
    try:
        # Unharmed, on every slot at once: how long it takes, and that the checks hold then.
        with ThreadPoolExecutor(len(slots)) as pool:
            first = list(pool.map(lambda slot: slot.calm(operation), slots))
        typical = sum(each.seconds for each, _ in first) / len(first)
        moments = max(many for _, many in first) + 2
        row.add(first[0][0])
        row.trials = row.acknowledged = 0
        # Few trials are spread over all the moments, many go through them one by one.
        stride = next(n for n in (37, 41, 43, 47) if moments % n)

        def work(slot: Slot) -> None:
            while not enough.is_set():
                with lock:
                    turn = next(turns, None)
                if turn is None:
                    return
                chance = random.Random(f"{seed}-{name}-{turn}")
                kill_it, who = chance.choice(((kill_tree, "all"), (Child.kill, "it")))
                if turn % 2:
                    step = 1 + (seed + turn // 2 * stride) % moments
                    about = f"after {who} died at moment {step} of {moments}"
                    harm = partial(kill_when_dead, kill_it)
                    result, _ = slot.trial(operation, harm, about, step)
                else:
                    moment = chance.uniform(0, typical * 1.2)
                    about = f"after {who} died at {moment:.3f} of {typical:.3f} s"
                    harm = partial(kill_after, moment, kill_it)
                    result, _ = slot.trial(operation, harm, about, None)
                with lock:
                    row.add(result)

        with ThreadPoolExecutor(len(slots)) as pool:
            try:
                list(pool.map(work, slots))
            finally:
                enough.set()
    finally:
        for slot in slots:
            slot.close()
            shutil.rmtree(slot.root, ignore_errors=True)
    row.seconds = time.monotonic() - begun
    row.notes.append(f"unharmed it takes {typical:.2f} s and has {moments} moments")
    return row


# A git that is killed while it holds one of these leaves it.
LEFT_LOCKS = (
    "ana/.git/cambium-wt/index.lock",
    "ana/.git/refs/remotes/origin/cambium.lock",
    "ana-org/.git/cambium-wt/index.lock",
    "ana-org/.git/refs/remotes/origin/main.lock",
)


def locks(root: Path) -> Row:
    """Each lock that a killed git leaves in what is cambium's own, put there by hand; then every
    tool is called."""
    row, begun = Row("locks"), time.monotonic()
    world = the_seed(root)
    slot = Slot(world, root / "locks")
    try:
        for name in LEFT_LOCKS:
            copy = world.copied(slot.root)
            ids = {word: item["id"] for items in census(copy, row, "at first").values()
                   for item in items for word in words_of(item)}  # fmt: skip
            (copy.root / name).parent.mkdir(parents=True, exist_ok=True)
            (copy.root / name).touch()
            slot.call(copy, ("fresh", {"quiet": True}), row, "")
            for call in itertools.chain.from_iterable(probes(ids, turn) for turn in range(3)):
                slot.call(copy, call, row, f"with {name} left")
            row.trials += 1
    finally:
        slot.close()
        shutil.rmtree(slot.root, ignore_errors=True)
    row.seconds = time.monotonic() - begun
    return row


# ── Crowd ─────────────────────────────────────────────────────────────────────


def acknowledged_ids(answers: Iterable[Json], tool: str = "capture") -> set[str]:
    return {each["result"]["item"]["id"] for each in answers
            if each["tool"] == tool and "result" in each}  # fmt: skip


def once_each(found: Census, wanted: set[str], row: Row) -> None:
    """Each id is in exactly one place, once."""
    counts = Counter(str(item["id"]) for items in found.values() for item in items)
    row.acknowledged += len(wanted)
    for item_id in sorted(wanted - set(counts)):
        row.fault("lost", item_id)
    for item_id, times in counts.items():
        if times > 1:
            spots = [s for s, items in found.items() if item_id in [i["id"] for i in items]]
            row.fault("doubled", f"{item_id} is in {spots}")


def slowest(answers: Iterable[Json], row: Row) -> None:
    """Fairness: the longest that anyone waited, and every call that failed."""
    most = max(answers, key=lambda each: float(each["took"]), default=None)
    if most:
        row.notes.append(f"the slowest call was a {most['tool']}: {most['took']:.2f} s")
    for each in answers:
        if "error" in each:
            row.fault("stuck", f"{each['tool']}: {each['error']}")
        elif float(each["took"]) > PATIENCE:
            row.fault("stuck", f"{each['tool']} took {each['took']} s")


def settle(world: World, row: Row, who: str = "ana") -> None:
    """One quiet call at the end, as the next session makes it."""
    with Child(world.environ(who)) as child:
        answer = child.ask(("review_promotions", {}), PATIENCE)
        if "error" in answer:
            row.fault("stuck", f"review_promotions at the end: {answer['error']}")


class Watching(threading.Thread):
    """A reader of a store that looks all the time and counts what it could not parse."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.looks, self.done = path, 0, threading.Event()
        self.broken: list[str] = []

    def run(self) -> None:
        while not self.done.wait(0.001):
            with contextlib.suppress(FileNotFoundError):
                text = self.path.read_bytes()
                self.looks += 1
                try:
                    held_items(text)
                except (ValueError, KeyError, TypeError) as error:
                    self.broken.append(f"{len(text)} bytes: {error}")


def crowd_wire(root: Path, captures: int = 40) -> Row:
    """Overlapping captures on one stdio pipe: every frame is sent before any answer is read."""
    row, begun = Row("crowd-wire", trials=1), time.monotonic()
    if not importlib.util.find_spec("mcp"):
        row.trials = 0
        row.notes.append("skipped: mcp is not installed for this Python")
        return row
    world = empty_world(root / "wire")
    client = {"name": "bench", "version": "0"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    frames: list[Json] = [
        {"id": 0, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
    ]
    frames += [
        {"id": n, "method": "tools/call",
         "params": {"name": "capture", "arguments": {"content": rule(f"lemma{n:04}")}}}
        for n in range(1, captures + 1)
    ]  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, str(SERVER)],
        env=world.environ("ana"),
        cwd=world.clone("ana"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert server.stdin
    assert server.stdout
    guard = threading.Timer(PATIENCE, server.kill)
    guard.start()
    ids: set[str] = set()
    took: list[float] = []
    try:
        server.stdin.write(frame(frames[0]))
        server.stdin.flush()
        server.stdout.readline()
        sent = time.monotonic()
        server.stdin.write(b"".join(map(frame, frames[1:])))
        server.stdin.flush()
        for _ in range(captures):
            reply = json.loads(server.stdout.readline() or b"{}")
            took.append(time.monotonic() - sent)
            result = reply.get("result", {})
            if not result or result.get("isError"):
                row.fault("stuck", f"frame {reply.get('id')}: {reply.get('error') or result}")
                continue
            ids.add(json.loads(result["content"][0]["text"])["item"]["id"])
        server.stdin.close()
        if server.wait(BOUND):
            row.fault("stuck", f"the server left with {server.returncode}")
    finally:
        guard.cancel()
        with contextlib.suppress(OSError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()
    once_each(census(world, row, "in the end"), ids, row)
    if len(ids) != captures:
        row.fault("lost", f"{captures - len(ids)} captures without an id of their own")
    row.notes.append(f"the last answer came after {max(took):.2f} s")
    shutil.rmtree(world.root, ignore_errors=True)
    row.seconds = time.monotonic() - begun
    return row


def frame(message: Json) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def crowd_mixed(root: Path, captures: int = 50) -> Row:
    """Four processes capture in one clone while one distills, one recalls and one promotes, and a
    reader parses the local store all the time."""
    row, begun = Row("crowd-mixed", trials=1), time.monotonic()
    world = the_seed(root).copied(root / "mixed")
    stop = world.home / "stop"
    seen = footprint(world.clone("ana"))
    watching = Watching(world.store)
    watching.start()
    with contextlib.ExitStack() as stack:

        def child(agent: str) -> Child:
            return stack.enter_context(Child(world.environ("ana", agent)))

        writers = [child(f"writer-{n}") for n in range(4)]
        others = [child(name) for name in ("distiller", "reader", "promoter")]
        asked: list[Call] = [("recall", {"query": f"{word} queues"}) for word in (*LOCAL, *TEAM)]
        loops: list[list[Call]] = [[("distill", {})], asked, [("promote_some", {})]]
        for other, calls in zip(others, loops, strict=True):
            other.send(calls, until=stop, last=True)
        for n, writer in enumerate(writers):
            numbers = range(1000 * (n + 1), 1000 * (n + 1) + captures)
            writer.send(
                [("capture", {"content": rule(f"lemma{i:04}")}) for i in numbers], last=True
            )
        answers = [each for writer in writers for each in writer.answers()]
        stop.touch()
        rest = [each for other in others for each in other.answers()]
    watching.done.set()
    watching.join()
    settle(world, row)
    found = census(world, row, "in the end")
    once_each(found, acknowledged_ids(answers), row)
    settled(found, {*SEEDED, *CLAIMS, *DECISIONS}, row, "in the end", half=False)
    for broken in watching.broken:
        row.fault("unreadable", broken)
    for name in unlike(seen, footprint(world.clone("ana"))):
        row.fault("stuck", f"{name} of the user's checkout changed")
    slowest([*answers, *rest], row)
    made = Counter(each["tool"] for each in rest)
    beside = ", ".join(f"{times} {tool}" for tool, times in made.items())
    row.notes.append(f"beside the captures: {beside}, {watching.looks} looks at the store")
    shutil.rmtree(world.root, ignore_errors=True)
    row.seconds = time.monotonic() - begun
    return row


def with_items(world: World, who: str, words: Iterable[str], row: Row) -> dict[str, str]:
    """Capture and endorse an item for each word in one clone; the ids."""
    ids = {}
    with Child(world.environ(who)) as child:
        for word in words:
            answer = child.ask(("capture", {"content": rule(word)}), PATIENCE)
            ids[word] = answer["result"]["item"]["id"]
            answer = child.ask(("endorse", {"item_id": ids[word]}), PATIENCE)
            if "error" in answer:
                row.fault("stuck", str(answer["error"]))
    return ids


Job = tuple[World, str, str, list[Call]]  # where, in whose clone, as whom, what


def at_once(jobs: Sequence[Job]) -> list[list[Json]]:
    """Processes that begin together, each with its calls; what each acknowledged."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(w.environ(who, name))) for w, who, name, _ in jobs]
        for child, (_, _, _, calls) in zip(children, jobs, strict=True):
            child.send(calls, last=True)
        return [child.answers() for child in children]


def crowd_promote(root: Path, items: int = 24) -> Row:
    """Four processes promote from one clone; every item is promoted by two of them."""
    row, begun = Row("crowd-promote", trials=1), time.monotonic()
    world = empty_world(root / "promote")
    ids = list(with_items(world, "ana", [f"lemma{n:04}" for n in range(items)], row).values())
    jobs: list[Job] = []
    for n in range(4):
        mine = [i for place, i in enumerate(ids) if place % 4 in (n, (n + 1) % 4)]
        random.Random(n).shuffle(mine)
        calls: list[Call] = [("promote", {"item_id": each}) for each in mine]
        jobs.append((world, "ana", f"promoter-{n}", calls))
    answers = [each for told in at_once(jobs) for each in told]
    settle(world, row)
    found = census(world, row, "in the end")
    once_each(found, set(ids), row)
    for item_id in sorted(set(ids) - {item["id"] for item in found["team"]}):
        row.fault("lost", f"{item_id} did not reach the team")
    slowest(answers, row)
    shutil.rmtree(world.root, ignore_errors=True)
    row.seconds = time.monotonic() - begun
    return row


def crowd_clones(root: Path, clones: int = 12, items: int = 5) -> Row:
    """Clones that promote items one by one, all at once, against a remote that thinks for 0.2 s
    about each push."""
    row, begun = Row("crowd-clones", trials=1), time.monotonic()
    names = [f"clone-{n:02}" for n in range(clones)]
    world = empty_world(root / "clones", *names)
    hook = world.hub / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nsleep 0.2\n")
    hook.chmod(0o755)
    with ThreadPoolExecutor(4) as pool:
        wanted = {
            name: pool.submit(
                with_items, world, name, [f"lemma{100 * n + i:04}" for i in range(items)], row
            )
            for n, name in enumerate(names)
        }
    ids = {name: list(future.result().values()) for name, future in wanted.items()}
    jobs = [(world, name, name, [("promote", {"item_id": each}) for each in ids[name]])
            for name in names]  # fmt: skip
    told = at_once(jobs)
    for name in names:
        settle(world, row, name)
    found = census(world, row, "in the end")
    every = {each for mine in ids.values() for each in mine}
    once_each(found, every, row)
    late = every - {item["id"] for item in found["team"]}
    if late:
        row.notes.append(f"{len(late)} items are still local: their call said so")
    slowest([each for mine in told for each in mine], row)
    ends = [sum(float(each["took"]) for each in mine) for mine in told]
    row.notes.append(f"the first clone was done after {min(ends):.1f} s, the last {max(ends):.1f}")
    shutil.rmtree(world.root, ignore_errors=True)
    row.seconds = time.monotonic() - begun
    return row


def crowd_first(root: Path, rounds: int = 6) -> Row:
    """The first promotion ever, raced from two clones, to a team branch that is not there and, in
    solo mode, to an org that is empty."""
    row, begun = Row("crowd-first"), time.monotonic()
    for turn in range(rounds):
        world = empty_world(root / f"first-{turn}", "ana", "ben")
        jobs: list[Job] = []
        every: set[str] = set()
        for n, name in enumerate(("ana", "ben")):
            ids = with_items(world, name, [f"lemma{10 * n + i:04}" for i in range(2)], row)
            every |= {*ids.values()}
            jobs.append((world, name, name, [("promote", {})]))
        answers = [each for told in at_once(jobs) for each in told]
        slowest(answers, row)
        found = census(world, row, "in the end")
        once_each(found, every, row)
        roots = world.git(world.hub, "rev-list", "--max-parents=0", "cambium").split()
        if len(roots) != 1:
            row.fault("doubled", f"the branch has {len(roots)} beginnings")
        if {item["id"] for item in found["team"]} != every:
            row.fault("lost", "an item did not reach the team")
        row.trials += 1
        shutil.rmtree(world.root, ignore_errors=True)
    row.notes = sorted(row.notes)[-1:]
    row.seconds = time.monotonic() - begun
    return row


# ── Disk ──────────────────────────────────────────────────────────────────────


def command(world: World, *args: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command line, as a person runs it."""
    argv = [*as_user(user), sys.executable, str(SERVER), *args]
    return subprocess.run(
        argv, env=world.environ("ana"), cwd=world.home, capture_output=True, encoding="utf-8",
        timeout=PATIENCE,
    )  # fmt: skip


def refused(
    world: World, words: Sequence[str], row: Row, about: str, user: int | None = None
) -> None:
    """The command fails with a clear error and exit code 1, and changes nothing."""
    stores = [world.store.read_bytes(), world.git(world.hub, "for-each-ref")]
    files = sorted(path.name for path in world.store.parent.iterdir())
    done = command(world, *words, user=user)
    told = done.stderr.strip()
    row.trials += 1
    if done.returncode != 1 or not told.startswith("error: ") or "\nFix: " not in told:
        row.fault("stuck", f"{words[0]} {about} ended with {done.returncode}: {told[-400:]}")
    if stores != [world.store.read_bytes(), world.git(world.hub, "for-each-ref")]:
        row.fault("stuck", f"{words[0]} {about} failed and yet changed a store: {told[-400:]}")
    ours = re.compile(r"lock|usage\.lock|(team-)?usage(-\w+)?\.jsonl")  # kept until it is counted
    new = {path.name for path in world.store.parent.iterdir()} - {*files}
    new = {name for name in new if not ours.fullmatch(name)}
    if new:
        row.fault("stuck", f"{words[0]} {about} left {sorted(new)}")


def works(
    world: World, words: Sequence[str], row: Row, about: str, user: int | None = None
) -> None:
    done = command(world, *words, user=user)
    row.trials += 1
    if done.returncode:
        row.fault("stuck", f"{words[0]} {about} ended with {done.returncode}: {done.stderr[-400:]}")
    elif words[0] in ("capture", "promote", "distill"):
        row.acknowledged += 1


def disk_story(
    world: World,
    break_it: Callable[[], object],
    mend_it: Callable[[], object],
    row: Row,
    about: str,
    user: int | None = None,
) -> None:
    """Writes are refused and reads work while the disk is broken; everything works again after."""
    note = rule("lemma0900")
    item = next(i["id"] for i in held_items(world.store.read_bytes()) if LOCAL[0] in words_of(i))
    break_it()
    refused(world, ["capture", note], row, about, user)
    refused(world, ["distill"], row, about, user)
    refused(world, ["promote", item], row, about, user)
    refused(world, ["endorse", item], row, about, user)
    works(world, ["recall", "queues", "bound"], row, about, user)
    works(world, ["status"], row, about, user)
    mend_it()
    works(world, ["capture", note], row, f"after {about}", user)
    works(world, ["distill"], row, f"after {about}", user)
    works(world, ["promote", item], row, f"after {about}", user)
    found = census(world, row, "in the end")
    settled(found, {*SEEDED, *CLAIMS, *DECISIONS, "lemma0900"}, row, "in the end", half=False)


def pending_recalls(world: World) -> None:
    """Recalls that a killed process left uncounted, one of a local item and one of a team item."""
    folder = world.store.parent
    team = held_items(branch_text(world, world.hub, "cambium"))
    ids = [held_items(world.store.read_bytes())[0]["id"], team[0]["id"]]
    who = {"agent": "ana", "project": "ana", "day": "2026-01-01"}
    lines = [json.dumps({"id": item_id, "item": item_id, **who}) + "\n" for item_id in ids]
    (folder / "usage.jsonl").write_text("".join(lines))
    (folder / "usage.lock").touch()
    for name in ("usage.jsonl", "usage.lock"):
        os.chown(folder / name, folder.stat().st_uid, folder.stat().st_gid)


def disk_full(root: Path) -> Row:
    """The store's folder, then the whole clone, on a small disk that is full."""
    row, begun = Row("disk-full"), time.monotonic()
    seed = the_seed(root)
    try:
        for part, pending in ((".cambium", False), (".cambium", True), (".", False)):
            world = seed.copied(root / "disk-full")
            place, kept = world.clone("ana") / part, world.home / "kept"
            if pending:
                pending_recalls(world)
            shutil.move(place, kept)
            place.mkdir()
            mounted = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=4m", "bench", str(place)], capture_output=True
            )
            if mounted.returncode:
                row.notes.append(f"skipped: no mount here: {mounted.stderr.decode().strip()}")
                break
            try:
                shutil.copytree(kept, place, dirs_exist_ok=True)
                filler = place / ("filler" if part == ".cambium" else ".git/filler")
                about = f"with {part} full" + " and recalls pending" * pending
                disk_story(world, partial(fill, filler), filler.unlink, row, about)
            finally:
                subprocess.run(["umount", str(place)], check=True)
    finally:
        shutil.rmtree(root / "disk-full", ignore_errors=True)
    row.seconds = time.monotonic() - begun
    return row


def fill(path: Path) -> None:
    """Write until nothing fits any more."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (65_536, 4_096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass


def disk_readonly(root: Path) -> Row:
    """`.cambium` without the right to write, for a user who is not root."""
    row, begun = Row("disk-readonly"), time.monotonic()
    user = 65_534 if os.geteuid() == 0 else None
    if user is not None and not shutil.which("setpriv"):
        row.notes.append("skipped: as root, and there is no setpriv to become somebody else")
        return row
    seed = the_seed(root)
    try:
        for pending in (False, True):
            world = seed.copied(root / "disk-readonly")
            folder = world.store.parent
            if pending:
                pending_recalls(world)
            if user is not None:
                for path in (world.root, *world.root.rglob("*")):
                    os.chown(path, user, user, follow_symlinks=False)
                with open(world.home / ".gitconfig", "a") as file:  # root looks into the hubs
                    file.write("[safe]\n\tdirectory = *\n")
            about = "with a read-only .cambium" + " and recalls pending" * pending
            shut, opened = partial(folder.chmod, 0o555), partial(folder.chmod, 0o755)
            disk_story(world, shut, opened, row, about, user)
    finally:
        shutil.rmtree(root / "disk-readonly", ignore_errors=True)
    row.seconds = time.monotonic() - begun
    return row


# ── Command ───────────────────────────────────────────────────────────────────


def scenarios(trials: int, seed: int, *, short: bool = False) -> dict[str, Callable[[Path], Row]]:
    """Every scenario by name; each kills `trials` times, where it kills."""
    kills = {name: partial(kill, name=name, trials=trials, seed=seed) for name in OPERATIONS}
    return {
        **{f"kill-{name}": scenario for name, scenario in kills.items()},
        "locks": locks,
        "crowd-wire": crowd_wire,
        "crowd-mixed": partial(crowd_mixed, captures=10 if short else 50),
        "crowd-promote": partial(crowd_promote, items=8 if short else 24),
        "crowd-clones": partial(crowd_clones, clones=4 if short else 12, items=2 if short else 5),
        "crowd-first": partial(crowd_first, rounds=1 if short else 6),
        "disk-full": disk_full,
        "disk-readonly": disk_readonly,
    }


def run(names: Sequence[str] = (), trials: int = 500, seed: int = 1, *, short: bool = False,
        tell: Callable[[Row], None] = lambda row: None) -> list[Row]:  # fmt: skip
    """Run the scenarios that have one of these names, or begin with one, or all; a row for each.
    The kills are shared out among the operations that are chosen."""
    chosen = {name for name in scenarios(0, 0) for each in names or ("",)
              if not each or name == each or name.startswith(f"{each}-")}  # fmt: skip
    kills = sorted(name for name in chosen if name.startswith("kill-"))
    rows: list[Row] = []
    root = Path(tempfile.mkdtemp(prefix="cambium-faults-")).resolve()
    try:
        root.chmod(0o711)  # another user looks for its own part of it
        for name in [name for name in scenarios(0, 0) if name in chosen]:
            share = len(range(kills.index(name), trials, len(kills))) if name in kills else 0
            rows.append(scenarios(share, seed, short=short)[name](root))
            tell(rows[-1])
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=500, help="kills in total (default 500)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--only", default="", help="names, comma-separated: kill, crowd-first, …")
    parser.add_argument("--short", action="store_true", help="small crowds")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    given = parser.parse_args(argv)
    known = scenarios(0, 0)
    names = [name.strip() for name in given.only.split(",") if name.strip()]
    for name in names:
        if not any(each == name or each.startswith(f"{name}-") for each in known):
            parser.error(f"no scenario {name!r}; there are {', '.join(known)}")

    def tell(row: Row) -> None:
        faults = sum(getattr(row, kind) for kind in Row.COUNTED)
        print(f"{row.scenario}: {faults} faults, {row.seconds:.0f} s", file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # and tidy up
    rows = run(names, given.trials, given.seed, short=given.short, tell=tell)
    print(json.dumps([asdict(row) for row in rows], indent=2) if given.json else table(rows))
    return 0 if all(row.clean for row in rows) else 1


if __name__ == "__main__":
    sys.exit(child_main() if sys.argv[1:] == ["--child"] else main())
