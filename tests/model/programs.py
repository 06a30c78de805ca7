"""Hypothesis strategies for what random programs do."""

from typing import Any

from hypothesis import strategies as st

from tests.model.words import LIMITS, POLICIES, Again, Operation, Recurrence, Spec, Work

INDEX = st.integers(0, 30)
ENDS = st.sampled_from(["result", "exception", "cancel"])
# All are exact in binary, so that sums compare equal whatever their order.
PAUSES = st.sampled_from([0, 0.25, 0.5, 1.0, 2.0])
DELAYS = st.sampled_from([0, 0, 0, 0.5, 1.0, 1.0, 3.5])
PRIORITIES = st.sampled_from([1, 5, 5, 5, 9, -2.5, float("inf"), 10**30])
MODES = st.sampled_from(["all", "due", "none"])
ERRORS = st.sampled_from(
    [("value", 0), ("value", 0), ("hopeless", 0), ("os", 0), ("exit", 0), ("after", 0), ("after", 1.5), ("stop", 0)]
)

AGAIN = st.one_of(
    st.just(Again(0)),
    st.builds(Again, retries=st.integers(0, 3), backoff=PAUSES),
    st.builds(
        Again,
        retries=st.integers(0, 3),
        backoff=PAUSES,
        whole=st.just(True),
        factor=st.sampled_from([2, 1, 0.5]),
        max_backoff=st.sampled_from([None, None, 0.5, 3.0]),
        jitter=st.sampled_from([0, 0.5, 1]),
        only_os_errors=st.booleans(),
        give_up=st.sampled_from([None, None, "hopeless", "raises"]),
    ),
)


def works(does: st.SearchStrategy[Operation | None], *, limits: bool) -> st.SearchStrategy[Work]:
    known: list[tuple[str, ...]] = [(), (), *[(name,) for name in LIMITS], ("one", "mail"), ("slow", "two")]
    return st.builds(
        Work,
        name=st.sampled_from([None, None, "a name"]),
        priority=PRIORITIES,
        again=AGAIN,
        deadline=st.sampled_from([None, 0, 1.0, 5.0]),
        limits=st.sampled_from(known if limits else [(), (), (), ("one",)]),
        context=st.booleans(),
        fails=st.sampled_from([0, 0, 0, 1, 2, 4]),
        error=ERRORS,
        does=does,
    )


def specs(does: st.SearchStrategy[Operation | None], *, limits: bool) -> st.SearchStrategy[Spec]:
    parents = st.lists(st.tuples(st.sampled_from(["job", "job", "foreign"]), INDEX), max_size=3).map(tuple)
    return st.builds(
        Spec,
        work=works(does, limits=limits),
        id=st.sampled_from([None, None, None, "a", "b", "c"]),
        delay=DELAYS,
        at=st.sampled_from([None, None, None, None, 0.5, 2.0, 4.0]),
        after=st.one_of(st.just(()), st.just(()), parents),
        any_outcome=st.booleans(),
        watched=st.booleans(),
    )


def recurrences(does: st.SearchStrategy[Operation | None], *, limits: bool) -> st.SearchStrategy[Recurrence]:
    return st.builds(
        Recurrence,
        work=works(does, limits=limits),
        seconds=st.sampled_from([0.5, 1, 2]),
        mode=st.sampled_from(["rate", "rate", "delay"]),
        missed=st.sampled_from(["coalesce", "skip", "burst"]),
        start=st.sampled_from([None, None, 0, 0.25, -0.75, 3]),
        until=st.sampled_from([None, None, 0.25, 3.0, 6.0]),
        max_runs=st.sampled_from([None, None, 1, 3]),
        max_failures=st.sampled_from([None, 1, 2]),
        jitter=st.sampled_from([0, 0, 0.25, 4]),
    )


def in_tasks(*, limits: bool, wide: bool = True) -> st.SearchStrategy[Operation | None]:
    """What a task does beside failing."""
    inner = specs(st.none(), limits=limits)
    choices: list[st.SearchStrategy[Any]] = [
        st.none(),
        st.none(),
        st.tuples(st.just("submit"), inner),
        st.tuples(st.sampled_from(["cancel", "cancel future", "request cancel", "claim"]), INDEX),
        st.tuples(st.just("priority"), INDEX, PRIORITIES),
        st.tuples(st.just("end foreign"), INDEX, ENDS),
        st.tuples(st.just("settle"), INDEX, st.booleans()),
        st.tuples(st.just("swap"), st.sampled_from(list(POLICIES))),
    ]
    if wide:
        choices += [
            st.sampled_from([("pause",), ("resume",), ("shutdown", "due"), ("shutdown", "none"), ("shutdown", "all")]),
            st.tuples(st.just("schedule"), st.sampled_from(["pause", "resume", "run now", "cancel"]), INDEX),
            st.tuples(st.just("every"), recurrences(st.none(), limits=limits)),
        ]
    return st.one_of(choices)
