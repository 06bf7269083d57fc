"""Processes that run tests (server.py), a few at a time."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Task = dict[str, Any]
Answer = dict[str, Any]


class Workers:
    """Servers that are started once. Not thread-safe."""

    def __init__(self, count: int, environment: Mapping[str, str]) -> None:
        self._servers = [
            subprocess.Popen(
                [sys.executable, "-m", "conformance.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=dict(environment),
            )
            for _ in range(count)
        ]

    def run(self, tasks: Sequence[Task], done: Callable[[Task, Answer], None]) -> None:
        """Runs all tasks; calls `done` for each, one at a time.

        Raises:
            RuntimeError: A server ended.
        """
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        lock = threading.Lock()

        def serve(server: subprocess.Popen[str]) -> None:
            assert server.stdin is not None
            assert server.stdout is not None
            while True:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                server.stdin.write(json.dumps(task) + "\n")
                server.stdin.flush()
                line = server.stdout.readline()
                if not line:
                    return
                with lock:
                    done(task, json.loads(line))

        threads = [threading.Thread(target=serve, args=(server,)) for server in self._servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if any(server.poll() is not None for server in self._servers):
            raise RuntimeError("a process that runs tests has ended; its last words are above")

    def close(self) -> None:
        """Ends the servers."""
        for server in self._servers:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()
