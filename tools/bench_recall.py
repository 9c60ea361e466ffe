#!/usr/bin/env python3
"""Times recall and capture over stores of several sizes.

`python3 tools/bench_recall.py [--sizes 1000,10000,100000] [--queries N] [--json]`

Everything happens in a temporary directory, on a real git remote, under a HOME of its own. Texts
are made of pseudo-words whose frequencies follow Zipf's law, as in prose; the seed is fixed.

    first new    the first recall of a process that finds a store nobody has read yet
    first        the same in a later process: what an earlier one learned of the store is kept
    p50, p95     recall in a process that has recalled before
    after write  the first recall after a capture
    capture      one capture, durable when it returns
    git          git processes that all the warm recalls together started
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench_faults import CHECKOUT, empty_world

COLUMNS = ("items", "first new", "first", "p50", "p95", "after write", "capture", "git")
SEED = 20261130


class Prose:
    """Texts of a vocabulary of pseudo-words."""

    SYLLABLES = tuple(
        c + v for c in "bdfgklmnprstvz" for v in ("a", "e", "i", "o", "u", "ai", "ou")
    )

    def __init__(self, size: int = 20_000) -> None:
        self.random = random.Random(SEED)
        made: dict[str, None] = {}
        while len(made) < size:
            length = 2 + (len(made) > 150) + self.random.randrange(2)
            made["".join(self.random.choices(self.SYLLABLES, k=length))] = None
        self.words = list(made)
        self.weights = [1 / (rank + 2.7) ** 1.07 for rank in range(size)]

    def text(self, length: int) -> str:
        return " ".join(self.random.choices(self.words, self.weights, k=length))

    def query(self, text: str) -> str:
        """Four words of a text that are not among the commonest."""
        common = {*self.words[:50]}
        rare = [word for word in dict.fromkeys(text.split()) if word not in common]
        return " ".join(self.random.sample(rare, min(4, len(rare))))


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds that a call takes."""
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def child(queries: Sequence[str], prose: Prose) -> dict[str, float]:
    """What one process sees: its first recall, later ones, captures."""
    sys.path.insert(0, str(CHECKOUT))
    import cambium_server as cambium

    seen: dict[str, float] = {"first": timed(lambda: cambium.recall(queries[0]))}
    started: list[object] = []
    sys.addaudithook(
        lambda event, _: started.append(event) if event == "subprocess.Popen" else None
    )
    warm = [timed(partial(cambium.recall, query)) for query in queries[1:]]
    seen["git"] = len(started)
    if warm:
        seen |= {"p50": statistics.median(warm), "p95": sorted(warm)[int(len(warm) * 0.95)]}
        rounds = []
        for query in queries[:10]:
            capture = timed(lambda: cambium.capture(prose.text(30)))
            rounds.append((capture, timed(partial(cambium.recall, query))))
        seen["capture"], seen["after write"] = (
            statistics.median(each) for each in zip(*rounds, strict=True)
        )
    cambium.here().scopes.deliver(network=False)
    return seen


def in_a_process(queries: Sequence[str], environ: Mapping[str, str]) -> dict[str, float]:
    argv, asked = [sys.executable, __file__, "--child"], "\n".join(queries)
    done = subprocess.run(
        argv, input=asked, env=environ, capture_output=True, encoding="utf-8", check=True
    )
    return dict(json.loads(done.stdout))


def measure(size: int, queries: int) -> dict[str, float]:
    """One row of the table: fresh processes over a store of this size."""
    root = Path(tempfile.mkdtemp(prefix="cambium-recall-")).resolve()
    try:
        world, prose = empty_world(root / "world"), Prose()
        shutil.rmtree(world.org)
        # A fetch is no part of a recall: it runs beside one at most.
        run = partial(in_a_process, environ=world.environ("ana") | {"CAMBIUM_FETCH_TTL": "3600"})
        texts = [prose.text(prose.random.randint(25, 55)) for _ in range(size)]
        rows = ({"id": f"k-{n:012x}", "content": text} for n, text in enumerate(texts))
        world.store.parent.mkdir()
        with open(world.store, "w", encoding="utf-8") as file:
            json.dump({"items": [*rows]}, file, indent=2)
        asked = [prose.query(text) for text in prose.random.choices(texts, k=queries)]
        new = run(asked[:1])
        again = [run(asked[n : n + 1])["first"] for n in range(3)]
        return {
            "items": size,
            "first new": new["first"],
            **run(asked),
            "first": statistics.median(again),
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)


def table(rows: Sequence[dict[str, float]]) -> Iterator[str]:
    yield "milliseconds, in one process of its own"
    yield "  ".join(f"{name:>11}" for name in COLUMNS)
    for row in rows:
        counts = ("items", "git")
        shown = (f"{row[n]:,.0f}" if n in counts else f"{row[n]:,.1f}" for n in COLUMNS)
        yield "  ".join(f"{text:>11}" for text in shown)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="1000,10000,100000", help="items, comma-separated")
    parser.add_argument("--queries", type=int, default=200, help="warm recalls of each size")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    given = parser.parse_args()
    rows = [measure(int(size), given.queries) for size in given.sizes.split(",")]
    print(json.dumps(rows, indent=2) if given.json else "\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        print(json.dumps(child(sys.stdin.read().splitlines(), Prose())))
        sys.exit(0)
    sys.exit(main())
