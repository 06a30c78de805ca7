"""The demonstration's server: real files, a bad mood that can be replayed, and its own book-keeping.

In here: what the server answers and when (`Behaviour`), the server itself (`SourceServer`), and what it
counted (`Tally`), which the demonstration compares with what its clients say. Deliberately not in here:
anything of the scheduler. The server is the independent witness and knows nothing of jobs.

**Replayable.** Whether a request is refused, and how long it takes, depends on the seed, the path and how
many times that path has been asked for, and on nothing else: neither on the time nor on the order of the
requests. So the same seed gives the same refusals whatever the scheduler does, and how many there must be
can be said beforehand.

**No name look-up.** `http.server` would ask the resolver for the machine's own name when it binds; that is
overridden here, so that the demonstration runs without a network.

Locking:
    One lock, over the counts. Nothing is done under it but counting.
"""

import hashlib
import http.server
import socketserver
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

HOST = "127.0.0.1"

# A file is refused at most this often, so that `MAX_REFUSALS` retries are enough for every file, with every
# seed.
MAX_REFUSALS = 4

# One answer in fifty takes this many times as long as the others: without a tail there would be no p99 to
# look at.
_SLOW_SHARE = 0.02
_SLOW_FACTOR = 6.0

# Seconds. A kept-alive connection that says nothing for so long is dropped; only a client that died reaches
# it.
_IDLE_CONNECTION = 10.0


@dataclass(frozen=True)
class Behaviour:
    """How the server treats the n-th request for a path; a pure function of its fields.

    Attributes:
        seed: Chooses one of the possible courses of events.
        busy_share: The share of requests answered 503, from 0 to 1.
        latency: Seconds that an answer takes on average; 0 answers at once.
    """

    seed: int
    busy_share: float
    latency: float

    def busy(self, path: str, attempt: int) -> bool:
        """Say whether this attempt, counted from 1, is refused with 503."""
        return attempt <= MAX_REFUSALS and self._draw("busy", path, attempt) < self.busy_share

    def refusals(self, path: str) -> int:
        """Return how many attempts are refused before the path is served."""
        attempt = 1
        while self.busy(path, attempt):
            attempt += 1
        return attempt - 1

    def pause(self, path: str, attempt: int) -> float:
        """Return the seconds that the server takes before it answers this attempt."""
        slow = self._draw("slow", path, attempt) < _SLOW_SHARE
        spread = 0.5 + self._draw("pause", path, attempt)
        return self.latency * spread * (_SLOW_FACTOR if slow else 1.0)

    def _draw(self, what: str, path: str, attempt: int) -> float:
        """Return a number from 0 up to 1 that only the arguments and the seed decide."""
        key = f"{self.seed}/{what}/{attempt}/{path}".encode("utf-8", "surrogateescape")
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64


@dataclass(frozen=True)
class Tally:
    """What the server counted.

    Attributes:
        requests: All requests that reached a handler.
        served: Those answered 200.
        busy: Those answered 503.
        missing: Those answered 404.
        broken: Exchanges that ended in an error on the server's side.
        peak: The most requests that were in flight at one moment.
        in_flight: Requests not yet answered when the tally was taken.
        connections: Connections accepted.
        attempts: For each path, how often it was asked for.
    """

    requests: int
    served: int
    busy: int
    missing: int
    broken: int
    peak: int
    in_flight: int
    connections: int
    attempts: dict[str, int]


class SourceServer(http.server.ThreadingHTTPServer):
    """Serves files under a folder on a free port of 127.0.0.1, from its own threads, as a context manager.

    Owns the listening socket, one thread that accepts and one a connection. Leaving the context ends them
    all; the clients must have closed their connections by then, or it takes as long as an idle connection
    is kept.
    """

    # The default backlog of 5 drops connections when many workers connect at once; the client's kernel then
    # tries again after a whole second.
    request_queue_size = 512
    # Threads that are joined, not abandoned: the tally must be final when the context is left.
    daemon_threads = False

    def __init__(self, root: Path, paths: frozenset[str], behaviour: Behaviour) -> None:
        """Bind to a free port; nothing is answered before the context is entered.

        Args:
            root: The folder that the paths are relative to.
            paths: All that is served, with `/` between the parts; anything else is answered 404.
            behaviour: Decides which requests are refused and how long each takes.
        """
        self._root = root
        self._paths = paths
        self._behaviour = behaviour
        self._closing = threading.Event()
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._by_status = {200: 0, 404: 0, 503: 0}
        self._broken = 0
        self._peak = 0
        self._in_flight = 0
        self._connections = 0
        self._attempts: dict[str, int] = {}
        super().__init__((HOST, 0), _Handler)
        self._acceptor = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="demo-server", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that was free."""
        return int(self.server_address[1])

    def __enter__(self) -> Self:
        """Start to answer."""
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop answering, and wait for the threads."""
        self._closing.set()
        self.shutdown()
        self._acceptor.join()
        self.server_close()

    def server_bind(self) -> None:
        """Bind without asking the resolver for this machine's name, as `HTTPServer` would."""
        socketserver.TCPServer.server_bind(self)
        self.server_name = HOST
        self.server_port = self.port

    def tally(self) -> Tally:
        """Return what has been counted up to now."""
        with self._lock:
            return Tally(
                requests=sum(self._attempts.values()),
                served=self._by_status[200],
                busy=self._by_status[503],
                missing=self._by_status[404],
                broken=self._broken,
                peak=self._peak,
                in_flight=self._in_flight,
                connections=self._connections,
                attempts=dict(self._attempts),
            )

    def answer(self, path: str) -> tuple[int, bytes]:
        """Count the request, take the time that an answer takes, and return status and body."""
        with self._lock:
            attempt = self._attempts[path] = self._attempts.get(path, 0) + 1
            self._in_flight += 1
            self._peak = max(self._peak, self._in_flight)
        status = 500
        try:
            self._closing.wait(self._behaviour.pause(path, attempt))
            status, body = self._decide(path, attempt)
        finally:
            # Before the answer is written: a client that has it may send its next request at once, and must
            # not be counted twice. So the peak may be too low by an answer on its way, and is never too
            # high.
            with self._lock:
                self._in_flight -= 1
                if status in self._by_status:
                    self._by_status[status] += 1
        return status, body

    def _decide(self, path: str, attempt: int) -> tuple[int, bytes]:
        """Return the status and the body for this attempt."""
        if path not in self._paths:
            return 404, b"no such file\n"
        if self._behaviour.busy(path, attempt):
            return 503, b"busy, try again\n"
        return 200, (self._root / path).read_bytes()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Count the connection and give it a thread."""
        with self._lock:
            self._connections += 1
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Count an exchange that broke, where the standard server prints a traceback."""
        with self._lock:
            self._broken += 1


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection: reads requests and writes what the server answers.

    Kept alive (HTTP/1.1 with `Content-Length`), with one `send` an answer and without Nagle's algorithm: an
    answer sent in two parts would stand still for the 40 ms of a delayed acknowledgement.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = _IDLE_CONNECTION
    server: SourceServer

    def do_GET(self) -> None:
        """Answer one request."""
        path = unquote(self.path, errors="surrogateescape").removeprefix("/")
        status, body = self.server.answer(path)
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the progress display."""
