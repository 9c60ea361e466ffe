#!/usr/bin/env python3
"""Measures the hooks, and kills them.

`python3 tools/bench_hooks.py [--runs N] [--sizes N,…] [--kills N] [--json]`

Times are those of `cambium_server.py hook` with standard input held open, from its start to its
exit, and the processor time it and its git used: about what it takes alone on a machine. The
project has a team branch, an org, and a local store of some size. `ranked` is the usual session
start: nothing was written since the last catch-up; `moved`: the store was. Each SessionEnd has a
new decision to record.

    kept    session ends over a remote that takes 3 s for every fetch: a third under `timeout 1.5`,
            a third under `timeout -s KILL 1.5`, a third killed at a random moment together with
            the catch-up. Each has a new decision, a newly finished claim and a recall to count.
            After the next session start everything must be there, exactly once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench_faults import CHECKOUT, SERVER, Json, Row, World, empty_world, held_items, marked, table

sys.path.insert(0, str(CHECKOUT))
import cambium_server as cambium

SLOW = 3.0  # seconds that the slow remote takes for a fetch
PATIENCE = 120.0  # seconds that a catch-up may take
WORDS = (
    "queue", "retry", "gateway", "jitter", "cache", "shard", "token", "lease", "replica", "schema",
)  # fmt: skip


def event(name: str, world: World) -> bytes:
    """An event as Claude Code writes it."""
    told = {
        "session_id": "5f1c9a07-3f0e-4f3e-9b7e-2d1f6c0a9e11", "hook_event_name": name,
        "transcript_path": str(world.home / "session.jsonl"), "cwd": str(world.clone("ana")),
    }  # fmt: skip
    more = {"SessionStart": {"source": "startup"}, "SessionEnd": {"reason": "other"}}
    return json.dumps(told | more[name]).encode()


@contextlib.contextmanager
def hooked(world: World, name: str, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """A hook that runs, its standard input open until it ended."""
    argv = [*before, sys.executable, str(SERVER), "hook"]
    with subprocess.Popen(
        argv, env=world.environ("ana"), cwd=world.clone("ana"), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as child:  # fmt: skip
        assert child.stdin
        child.stdin.write(event(name, world))
        child.stdin.flush()
        yield child
        child.wait()


def wait_for_silence(world: World) -> None:
    """Until the catch-up has ended."""
    end = time.monotonic() + PATIENCE
    while marked(world.mark):
        if time.monotonic() > end:
            raise RuntimeError("a catch-up does not end")
        time.sleep(0.05)


Spent = tuple[float, float]  # wall and processor time in milliseconds


@contextlib.contextmanager
def timing(times: list[Spent]) -> Iterator[None]:
    """Note what the programs that are started and waited for inside take."""

    def clock() -> Spent:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1000 * time.monotonic(), 1000 * (used.ru_utime + used.ru_stime)

    before = clock()
    yield
    wall, cpu = clock()
    times.append((wall - before[0], cpu - before[1]))


def repeated(world: World, name: str, runs: int, prepare: Callable[[int], None]) -> list[Spent]:
    """What a hook takes, again and again, waiting in between for what it leaves running. A session
    start that tells nothing is none."""
    times: list[Spent] = []
    for turn in range(runs):
        prepare(turn)
        with timing(times), hooked(world, name) as child:
            told = child.stdout.read() if child.stdout else b""
        if name == "SessionStart" and not told:
            times.pop()
        wait_for_silence(world)
    return times


def grown(root: Path, size: int) -> World:
    """A world whose clone has that many local items, and some on the team and the org."""
    made = empty_world(root)
    world = World(made.root, f"{root.name}-{os.getpid()}")
    rnd, moment = random.Random(size), cambium.now()

    def fill(document: cambium.Document) -> None:
        for n in range(size):
            said = " ".join(rnd.choice(WORDS) for _ in range(30))
            item = cambium.Item.new(
                f"Rule {n}: {said}", agent="ana", project="ana", moment=moment, why=said[:80]
            )
            document.entries[item.id] = cambium.Entry(item.to_json())
        document.changed = True

    cambium.LocalStore(world.clone("ana") / ".cambium").mutate(fill, "fill")
    for n in range(3):
        item = tool(world, "capture", f"Shared rule {n}: bound every queue")["item"]["id"]
        tool(world, "endorse", item)
        tool(world, "promote", item)
        if n == 0:
            tool(world, "promote", item, "--to-scope", "org")
    wait_for_silence(world)
    return world


def tool(world: World, *words: str) -> Json:
    done = subprocess.run(
        [sys.executable, str(SERVER), *words, "--json"], env=world.environ("ana"),
        cwd=world.clone("ana"), capture_output=True, encoding="utf-8", timeout=PATIENCE,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {done.stderr}")
    return dict(json.loads(done.stdout))


def decide(world: World, ref: str) -> None:
    """Record a decision as context-keeper keeps it."""
    path = world.clone("ana") / ".context" / "decisions.json"
    path.parent.mkdir(exist_ok=True)
    known = json.loads(path.read_text("utf-8")) if path.exists() else []
    known.append({"id": ref, "summary": f"Chosen: {ref}", "rationale": "it is bounded"})
    path.write_text(json.dumps(known), "utf-8")


def spread(times: Sequence[Spent]) -> str:
    if not times:
        return "no answer"
    wall, cpu = zip(*times, strict=True)
    told = f"{len(times)} runs: median {statistics.median(wall):.0f} ms, worst {max(wall):.0f} ms"
    return f"{told}, cpu {statistics.median(cpu):.0f} ms"


def baseline(runs: int) -> str:
    """What any command of ours costs: an interpreter, our module, the list of commands."""
    times: list[Spent] = []
    for _ in range(runs):
        with timing(times):
            subprocess.run([sys.executable, str(SERVER), "--version"], stdout=subprocess.DEVNULL)
    return f"{'':>13} {'--version':<21} {spread(times)}"


def timed(root: Path, size: int, runs: int) -> list[str]:
    """What hooks take at one size, in words."""
    world = grown(root, size)

    def nothing(turn: int) -> None:
        pass

    repeated(world, "SessionStart", 1, nothing)  # and everything is ranked
    told = {
        "SessionStart, ranked": repeated(world, "SessionStart", runs, nothing),
        "SessionStart, moved": repeated(
            world, "SessionStart", runs, lambda turn: os.utime(world.store)
        ),
        "SessionEnd": repeated(
            world, "SessionEnd", runs, lambda turn: decide(world, f"dec-{turn:03}")
        ),
    }
    return [f"{size:>6,} items  {name:<21} {spread(times)}" for name, times in told.items()]


def finish(world: World, board: Path, agent: str) -> None:
    """Put a finished claim on the board's remote, as agentsync does."""
    path = board / "claims.json"
    claims = json.loads(path.read_text("utf-8"))["claims"] if path.exists() else {}
    claims[agent] = {"task": f"mend {agent}", "status": "done", "note": f"{agent} is mended"}
    path.write_text(json.dumps({"claims": claims}), "utf-8")
    world.git(board, "add", "-A")
    world.git(board, "commit", "-q", "-m", f"agentsync: {agent}")
    world.git(board, "push", "-q", "origin", "agentsync")


def with_slow_remote(root: Path) -> tuple[World, Path, str]:
    """A world over a remote that is slow to ana, her board's other clone, and one item's id."""
    made = empty_world(root)
    world = World(made.root, f"{root.name}-{os.getpid()}")
    board = world.root / "board"
    world.git(world.root, "clone", "-q", str(world.hub), board.name)
    world.git(board, "checkout", "-q", "--orphan", "agentsync")
    world.git(board, "rm", "-rfq", ".")
    item = str(tool(world, "capture", "Bound every queue")["item"]["id"])
    for path in (world.clone("ana"), world.org):
        slow = f"sleep {SLOW:g}; git-upload-pack"
        world.git(path, "config", "remote.origin.uploadpack", slow)
    return world, board, item


def end_session(world: World, turn: int, rnd: random.Random) -> None:
    """One session's end, cut off in one of three ways."""
    limit = (["timeout", "1.5"], ["timeout", "-s", "KILL", "1.5"], [])[turn % 3]
    with hooked(world, "SessionEnd", *limit) as child:
        if not limit:
            time.sleep(rnd.uniform(0.02, 0.5))
            for pid in {child.pid, *marked(world.mark)}:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def kept(root: Path, kills: int, seed: int) -> Row:
    """Session ends that are cut off, each followed by the next session's start."""
    row, begun, rnd = Row("kept"), time.monotonic(), random.Random(seed)
    world, board, item = with_slow_remote(root)
    day = f"{cambium.now():%Y-%m-%d}"
    times: list[Spent] = []
    for turn in range(kills):
        row.trials += 1
        decide(world, f"dec-{turn:03}")
        finish(world, board, f"bot-{turn:03}")
        usage = cambium.UsageLog(world.clone("ana") / ".cambium", "usage")
        usage.add([cambium.Credit(item, "ana", "ana", day)])
        row.acknowledged += 3
        with timing(times):
            end_session(world, turn, rnd)
        held = held_items(world.store.read_bytes())
        if turn % 3 < 2 and f"dec-{turn:03}" not in refs(held):
            row.fault("lost", f"turn {turn}: the hook itself kept no decision")
        with hooked(world, "SessionStart"):
            pass
        wait_for_silence(world)
        count(world, item, turn + 1, row)
    row.seconds = time.monotonic() - begun
    row.notes.append(f"a session's end took {spread(times)}")
    return row


def refs(items: Sequence[Json]) -> Counter[str]:
    return Counter(str(item["source"]["ref"]) for item in items)


def count(world: World, item: str, turns: int, row: Row) -> None:
    """Every decision, claim and recall so far is in the store, once."""
    held = held_items(world.store.read_bytes())
    found = refs(held)
    agents = Counter(ref.partition("@")[0] for ref in found.elements())
    for n in range(turns):
        for name, times in ((f"dec-{n:03}", found), (f"bot-{n:03}", agents)):
            if times[name] != 1:
                kind = "doubled" if times[name] else "lost"
                row.fault(kind, f"{name} is there {times[name]} times after {turns} turns")
    recalls = next(each["trust"]["recalls"] for each in held if each["id"] == item)
    if recalls != turns:
        kind = "lost" if recalls < turns else "doubled"
        row.fault(kind, f"{recalls} of {turns} recalls are counted")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="runs for each time (default 20)")
    parser.add_argument("--sizes", default="0,1000,10000", help="items in the local store")
    parser.add_argument("--kills", type=int, default=20, help="session ends that are cut off")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(argv)
    root = Path(tempfile.mkdtemp(prefix="cambium-hooks-")).resolve()
    try:
        lines: list[str] = [baseline(given.runs)]
        for size in map(int, filter(None, given.sizes.split(","))):
            lines += timed(root / f"at-{size}", size, given.runs)
        row = kept(root / "kept", given.kills, given.seed)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    told = {"times": lines, "kept": asdict(row)}
    print(json.dumps(told, indent=2) if given.json else "\n".join([*lines, table([row])]))
    return 0 if row.clean else 1


if __name__ == "__main__":
    sys.exit(main())
