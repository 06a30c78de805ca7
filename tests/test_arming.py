"""Armed things: what is due is looked at in its time, once, and an arming that was replaced is dead."""

from collections import deque
from typing import Any

import pytest

from threadsched._arming import SWEEP_SLACK, Armable, Armings


def rung(armings: Armings, now: float) -> list[Armable]:
    outbox: deque[Any] = deque()
    armings.ring(now, outbox)
    return [ring.thing for ring in outbox]


def sound(armings: Armings) -> bool:
    faults: list[str] = []
    armings.audit(lambda truth, what: None if truth else faults.append(what))
    return not faults


def test_things_ring_in_their_time_and_once():
    """A thing rings from its instant on, the earliest first, and is not armed any more then."""
    armings = Armings()
    late, early = Armable(), Armable()
    assert armings.arm(late, 5.0) is True
    assert armings.arm(early, 3.0) is True
    assert armings.arm(Armable(), 9.0) is False
    assert armings.due() == 3.0
    assert rung(armings, 2.9) == []
    assert rung(armings, 5.0) == [early, late]
    assert rung(armings, 5.0) == []
    assert (early.ticket, late.ticket) == (0, 0)
    assert armings.due() == 9.0
    assert sound(armings)


def test_thing_that_is_armed_again_rings_at_its_new_instant_alone():
    """Arming a thing anew, for earlier or later, leaves one arming: the old entry is dead and thrown away."""
    armings = Armings()
    thing = Armable()
    armings.arm(thing, 5.0)
    armings.arm(thing, 7.0)
    assert armings.due() == 7.0
    assert rung(armings, 6.0) == []
    armings.arm(thing, 3.0)
    assert rung(armings, 7.0) == [thing]
    assert rung(armings, 99.0) == []
    assert sound(armings)


def test_disarmed_things_are_silent_and_swept():
    """A disarmed thing does not ring; the dead entries do not add up, however often something is armed anew."""
    armings = Armings()
    thing, other = Armable(), Armable()
    armings.arm(other, 1000.0)
    for at in range(500):
        armings.arm(thing, float(at))
    armings.disarm(thing)
    armings.disarm(thing)
    assert len(armings._queue) <= 2 + SWEEP_SLACK
    assert rung(armings, 999.0) == []
    assert sound(armings)
    armings.clear()
    assert (armings.things, armings.due()) == ({}, None)


def test_arming_that_is_broken_off_has_not_happened():
    """Ctrl-C at the push leaves the thing unarmed."""
    armings = Armings()
    thing = Armable()
    push = armings._queue.push

    def interrupted(entry: object) -> None:
        raise KeyboardInterrupt

    armings._queue.push = interrupted
    with pytest.raises(KeyboardInterrupt):
        armings.arm(thing, 1.0)
    armings._queue.push = push
    assert armings.things == {}
    assert rung(armings, 2.0) == []
    assert sound(armings)


def test_untidy_queue_is_rebuilt_before_anybody_looks():
    """An interrupt inside a change of the queue is mended from the map at the next look."""
    armings = Armings()
    thing = Armable()
    armings.arm(thing, 4.0)
    armings._queue.lane.clear()
    armings._queue.untidy = True
    assert sound(armings)
    assert armings.due() == 4.0
    assert rung(armings, 4.0) == [thing]


@pytest.mark.parametrize("instead", [None, 9.0])
def test_head_that_changes_between_look_and_pop_is_not_lost(instead: float | None):
    """If the due thing is gone when it is popped, a later one that comes instead stays armed."""
    armings = Armings()
    due, later = Armable(), Armable()
    armings.arm(due, 1.0)
    if instead is not None:
        armings.arm(later, instead)
    pop = armings._queue.pop

    def overtaken() -> Any:
        armings._queue.pop = pop
        armings.disarm(due)
        armings.repair()
        return pop()

    armings._queue.pop = overtaken
    assert rung(armings, 5.0) == []
    assert armings.due() == instead
    assert sound(armings)


def test_dead_head_that_comes_alive_between_look_and_pop_is_put_back():
    """If a living entry comes instead of the dead one that is thrown away, it stays armed."""
    armings = Armings()
    dead, later = Armable(), Armable()
    armings.arm(dead, 1.0)
    armings.arm(later, 5.0)
    armings.disarm(dead)
    pop = armings._queue.pop

    def overtaken() -> Any:
        armings._queue.pop = pop
        armings.repair()
        return pop()

    armings._queue.pop = overtaken
    assert armings.due() == 5.0
    assert rung(armings, 5.0) == [later]


def test_who_is_armed_says_what_to_do():
    """A thing without a way to proceed is a mistake of ours, and says so."""
    with pytest.raises(NotImplementedError):
        Armable().proceed(None)


def test_audit_sees_a_wrong_ticket():
    """A thing that stands under another ticket than it has is found."""
    armings = Armings()
    thing = Armable()
    armings.arm(thing, 1.0)
    thing.ticket += 1
    assert not sound(armings)
