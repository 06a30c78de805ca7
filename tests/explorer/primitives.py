"""Simulated locks, threads, queues and time, and the standard library's own Condition and Event on top of them.

Each object belongs to the kernel that was active when it was made. When that run is over, or where none is active,
nothing is simulated: a finalizer that comes late finds locks that always open.
"""

import threading
import types
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.explorer.kernel import Fiber, Kernel, Unwind

TIMEOUT_MAX = threading.TIMEOUT_MAX


class Idle:
    """Stands for the kernel where there is none."""

    over = True
    unwinding = False
    now = 0.0
    current: Any = None
    numbered = 0


IDLE: Any = Idle()
active: Any = IDLE


def activate(kernel: Kernel | None) -> None:
    """Make new objects belong to this kernel."""
    global active
    active = IDLE if kernel is None else kernel


def deadline_of(kernel: Any, timeout: float | None) -> float | None:
    """Return when a wait ends; raises what the real ones raise."""
    if timeout is None or timeout == -1:
        return None
    if timeout < 0:
        raise ValueError("timeout value must be a non-negative number")
    if timeout > TIMEOUT_MAX:
        raise OverflowError("timeout value is too large")
    return float(kernel.now + timeout)


def _try(lock: Any, kernel: Kernel, blocking: bool, timeout: float) -> bool:
    """Wait a limited time until a lock is free, and say whether it is."""
    kernel.point("tries", lock)
    if lock.free:
        return True
    deadline = deadline_of(kernel, timeout)
    if not blocking or timeout == 0:
        return False
    while not lock.free:
        if not kernel.block(lock, deadline, "sleeps on"):
            return False
    return True


class SimLock:
    """``threading.Lock``; a token if it is born held.

    Who must wait for a lock that is held is blocked at once, with no point before: whether another thread is let go
    before it asks or after makes no difference. Nor is it let go again before the lock is free.
    """

    kind = "lock"

    def __init__(self) -> None:
        self.kernel = active
        self.free = True
        self.fresh = True  # nobody but its maker can know it before it was acquired once
        self.number = self.kernel.numbered = self.kernel.numbered + 1

    def __repr__(self) -> str:
        return f"{self.kind} {self.number}"

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = self.kernel
        if kernel.over:
            return True
        if self.fresh:
            self.fresh = self.free = False
            return True
        if blocking and timeout == -1:
            if self.free:
                kernel.point("acquires", self, self)
            while not self.free:
                kernel.block(self, None, "sleeps on")
        elif not _try(self, kernel, blocking, timeout):
            return False
        self.free = False
        return True

    def release(self, *_: object) -> None:
        kernel = self.kernel
        if kernel.over or kernel.unwinding:
            self.free = True
            return
        if self.free:
            raise RuntimeError("release unlocked lock")
        self.free = True
        kernel.after("released", self)

    def locked(self) -> bool:
        return not self.free

    __enter__ = acquire  # one call less
    __exit__ = release

    # What Condition asks for where it is there; here as in the lock of C.
    def _at_fork_reinit(self) -> None:
        self.free = True


class SimRLock:
    """``threading.RLock``. Re-entering and leaving an inner hold is no point: nobody else can notice."""

    kind = "rlock"
    section = 1  # whether to hold it counts as being inside a critical section, see Lines

    def __init__(self) -> None:
        self.kernel = active
        self.free = True
        self.owner: Fiber | None = None
        self.depth = 0
        self.number = self.kernel.numbered = self.kernel.numbered + 1

    def __repr__(self) -> str:
        return f"{self.kind} {self.number}" + (f" of {self.owner.name}" if self.owner is not None else "")

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = self.kernel
        if kernel.over:
            return True
        me = kernel.current
        if self.owner is me:
            if kernel.unwinding:
                raise Unwind
            self.depth += 1
            return True
        if blocking and timeout == -1:
            if self.free:
                kernel.point("enters", self, self)
            while not self.free:
                kernel.block(self, None, "waits at")
        elif not _try(self, kernel, blocking, timeout):
            return False
        self.free = False
        self.owner = me
        self.depth = 1
        me.inside += self.section
        return True

    def release(self, *_: object) -> None:
        kernel = self.kernel
        if kernel.over or kernel.unwinding:
            self.free, self.owner, self.depth = True, None, 0
            return
        if self.owner is not kernel.current:
            raise RuntimeError("cannot release un-acquired lock")
        self.depth -= 1
        if not self.depth:
            self.owner.inside -= self.section
            self.owner = None
            self.free = True
            kernel.after("left", self)

    __enter__ = acquire  # one call less
    __exit__ = release

    def _is_owned(self) -> bool:
        kernel = self.kernel
        return not kernel.over and self.owner is kernel.current

    def _release_save(self) -> int:
        depth, self.depth = self.depth, 1
        self.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        self.acquire()
        self.depth = depth


class SimJobCondition(SimRLock):
    """``_locks.JobCondition``."""

    kind = "condition"
    section = 0

    def __init__(self) -> None:
        super().__init__()
        self.waiters: list[Any] = []
        self.told = 0
        self.to_tell: int | None = None


class SimQueue:
    """``queue.SimpleQueue``."""

    def __init__(self) -> None:
        self.kernel = active
        self.items: deque[Any] = deque()
        self.number = self.kernel.numbered = self.kernel.numbered + 1

    def __repr__(self) -> str:
        return f"queue {self.number}"

    @property
    def free(self) -> bool:
        return bool(self.items)

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        self.items.append(item)
        if not self.kernel.over:
            self.kernel.after("put into", self)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        import queue

        kernel = self.kernel
        if not kernel.over:
            kernel.point("takes from", self)
            if not self.items:
                deadline = deadline_of(kernel, timeout)
                while not self.items:
                    if not block or timeout == 0 or not kernel.block(self, deadline, "sleeps on"):
                        raise queue.Empty
        return self.items.popleft()


class SimThread:
    """``threading.Thread``."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.kernel = active
        self.target = target
        self.args = args
        self.kwargs = kwargs or {}
        self.daemon = bool(daemon)
        self.fiber: Fiber | None = None
        self.name = name or f"thread {self.kernel.born}"

    def __repr__(self) -> str:
        return f"thread {self.name}"

    def start(self) -> None:
        self.kernel.point("starts", self)
        if self.kernel.refuses(self.name):
            raise RuntimeError("can't start new thread")
        self.fiber = self.kernel.spawn(self._live, self.name)
        self.fiber.thread = self

    def _live(self) -> None:
        target, args, kwargs = self.target, self.args, self.kwargs
        self.target, self.args, self.kwargs = None, (), {}
        if target is not None:
            target(*args, **kwargs)

    @property
    def ident(self) -> int | None:
        return None if self.fiber is None else self.fiber.number + 1

    def is_alive(self) -> bool:
        return self.fiber is not None and not self.fiber.free

    def join(self, timeout: float | None = None) -> None:
        assert self.fiber is not None
        if self.fiber is self.kernel.current:
            raise RuntimeError("cannot join current thread")
        self.kernel.point("joins", self)
        if not self.fiber.free:
            self.kernel.block(self.fiber, deadline_of(self.kernel, timeout), "joins")


def current_thread() -> Any:
    """``threading.current_thread``."""
    fiber = active.current
    if fiber is None:
        return threading.current_thread()
    if fiber.thread is None:  # the main one
        fiber.thread = SimThread(name=fiber.name)
        fiber.thread.fiber = fiber
    return fiber.thread


def get_ident() -> int:
    """``threading.get_ident``."""
    fiber = active.current
    return threading.get_ident() if fiber is None else int(fiber.number) + 1


def monotonic() -> float:
    """``time.monotonic``."""
    return float(active.now)


def sleep(seconds: float) -> None:
    """``time.sleep``."""
    active.sleep(seconds)


class Namespace:
    """A module with some names replaced."""

    def __init__(self, module: types.ModuleType, **replaced: object) -> None:
        self._module = module
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def rebuilt() -> dict[str, Any]:
    """Return the standard library's classes, their own code, on the simulated locks.

    The functions are the same code objects; only the module that they look names up in is another.
    """
    module = dict(vars(threading))
    module.update(
        Lock=SimLock,
        RLock=SimRLock,
        Thread=SimThread,
        _allocate_lock=SimLock,
        _time=monotonic,
        current_thread=current_thread,
    )
    for name in ("Condition", "Event", "Barrier"):
        original = vars(threading)[name]
        body = {
            key: _with_globals(value, module) if isinstance(value, types.FunctionType) else value
            for key, value in vars(original).items()
            if key not in ("__dict__", "__weakref__")
        }
        module[name] = type(name, original.__bases__, body)
    return module


def _with_globals(function: types.FunctionType, module: dict[str, Any]) -> types.FunctionType:
    made = types.FunctionType(function.__code__, module, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _main_thread() -> Any:
    main = active.main
    if main.thread is None:
        main.thread = SimThread(name=main.name)
        main.thread.fiber = main
    return main.thread


_module = rebuilt()
Condition, Event, Barrier = _module["Condition"], _module["Event"], _module["Barrier"]

SIM_THREADING = Namespace(
    threading,
    Lock=SimLock,
    RLock=SimRLock,
    Thread=SimThread,
    Condition=Condition,
    Event=Event,
    Barrier=Barrier,
    current_thread=current_thread,
    main_thread=_main_thread,
)
