"""The demonstration's client: what there is to fetch, how one file is fetched, and a record of each attempt.

In here: the search for the interpreter's sources, the connections, and `Attempt`, one record per request
sent. Deliberately not in here: retrying and ordering. `Fetcher.fetch` sends one request and raises if it
was refused; what happens then is up to whoever runs it, the scheduler or the comparison.
"""

import hashlib
import http.client
import os
import sysconfig
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from threadsched._demo_server import HOST

# Seconds. Far above the slowest answer; only a server that died reaches it.
_ANSWER_TIMEOUT = 10.0

_NOT_SOURCES = frozenset({"__pycache__", "dist-packages", "site-packages"})


class FetchError(Exception):
    """A request that did not bring the file; parent of the two below."""


class ServerBusyError(FetchError):
    """Raised when the server answers 503; the same request may succeed later."""


class MissingFileError(FetchError):
    """Raised when the server answers 404; no retry will help."""


@dataclass(frozen=True)
class Source:
    """A file on disk: its path below the root with `/` between the parts, its size in bytes, its SHA-256."""

    path: str
    size: int
    digest: str

    @property
    def package(self) -> str:
        """The top-level package, or an empty string for a module that is in none."""
        return self.path.partition("/")[0] if "/" in self.path else ""

    @property
    def opens_package(self) -> bool:
        """Whether this is a package's `__init__.py`."""
        return self.path.rpartition("/")[2] == "__init__.py"


@dataclass(frozen=True)
class Body:
    """What came over the wire for a path: its size in bytes and its SHA-256."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Attempt:
    """One request: by whom, from when to when (monotonic seconds), and the status (0: no answer came)."""

    path: str
    worker: str
    started: float
    ended: float
    status: int


def sources_root() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find_sources(root: Path, limit: int | None = None) -> list[Source]:
    """Return the `.py` files below `root` that can be read, ordered by path, without installed packages.

    Args:
        root: The folder to search.
        limit: At most so many, at even distances, so that every large package keeps its share; None: all.
    """
    paths: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_SOURCES]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    paths.sort()
    if limit is not None and limit < len(paths):
        paths = [paths[i * len(paths) // limit] for i in range(limit)]
    found = (_read_source(root, path) for path in paths)
    return [source for source in found if source is not None]


def _read_source(root: Path, path: Path) -> Source | None:
    """Return the record of one file, or None if it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return Source(path.relative_to(root).as_posix(), len(content), hashlib.sha256(content).hexdigest())


class Fetcher:
    """Fetches files over one kept-alive connection a thread, and remembers every attempt.

    Thread safety: `fetch` may be called by any number of threads. `close` comes last, when no fetch runs.
    """

    def __init__(self, port: int) -> None:
        """Fetch from this port of 127.0.0.1; nothing is connected before the first fetch."""
        self._port = port
        self._mine = threading.local()
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._connections: list[http.client.HTTPConnection] = []
        self._attempts: list[Attempt] = []

    def __enter__(self) -> Self:
        """Return the fetcher."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close every connection."""
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def fetch(self, path: str) -> Body:
        """Send one request for `path` and return what came.

        Raises:
            ServerBusyError: The server answered 503.
            MissingFileError: The server answered 404.
            FetchError: It answered something else.
            OSError, http.client.HTTPException: No whole answer came.
        """
        status = 0
        started = time.monotonic()
        try:
            status, content = self._exchange(path)
        finally:
            attempt = Attempt(path, threading.current_thread().name, started, time.monotonic(), status)
            with self._lock:
                self._attempts.append(attempt)
        if status == 503:
            raise ServerBusyError("503 Service Unavailable")
        if status == 404:
            raise MissingFileError("404 Not Found")
        if status != 200:
            raise FetchError(f"unexpected status {status}")
        return Body(path, len(content), hashlib.sha256(content).hexdigest())

    def attempts(self) -> list[Attempt]:
        """Return all attempts so far, in the order in which they ended."""
        with self._lock:
            return list(self._attempts)

    def _exchange(self, path: str) -> tuple[int, bytes]:
        """Send a request on this thread's connection and read the answer to its end."""
        connection = self._connection()
        try:
            connection.request("GET", "/" + quote(path, errors="surrogateescape"))
            response = connection.getresponse()
            return response.status, response.read()
        except BaseException:
            # Half an answer may still be on its way: the next request needs a fresh start, which
            # `http.client` makes by itself on a closed connection.
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPConnection:
        """Return the calling thread's connection."""
        connection: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(HOST, self._port, timeout=_ANSWER_TIMEOUT)
            self._mine.connection = connection
            with self._lock:
                self._connections.append(connection)
        return connection
