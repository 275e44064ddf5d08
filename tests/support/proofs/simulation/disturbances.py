"""The effect of each kind of incident, at the call where it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.incidents import Incident
from simulation.world import Call

if TYPE_CHECKING:
    from simulation.play import Play

__all__ = ["KINDS", "disturb"]


def disturb(play: Play, incident: Incident, call: Call) -> Any:
    """Have an incident happen.

    Returns:
        The answer of the call, for whoever has made it.
    """
    return KINDS[incident.kind][0](play, incident.number, call)


# --- of a call


def _lose_call(play: Play, number: int, call: Call) -> Any:
    del play, number
    raise call.kind.error(f"{call.what} (did not happen)")


def _lose_answer(play: Play, number: int, call: Call) -> Any:
    del play, number
    call.work()
    raise call.kind.error(f"{call.what} (has happened)")


def _delay(play: Play, number: int, call: Call) -> Any:
    play.world.later(1 + number % 128, call.work)
    raise call.kind.error(f"{call.what} (happens later)")


def _double(play: Play, number: int, call: Call) -> Any:
    del play, number
    if call.kind.repeats:
        call.work()
    return call.work()


# --- of actors


def _hold_up(play: Play, number: int, call: Call) -> Any:
    """Put the caller to sleep, for some steps or until no other actor can continue."""
    world, actor = play.world, play.world.current
    world.scheduler.neglect(actor)
    if number % 4:
        world.later(number % 256, lambda: world.scheduler.prefer(actor))
    world.scheduler.give_way()
    return call.work()


def _go_first(play: Play, number: int, call: Call) -> Any:
    """Somebody else goes on."""
    world = play.world
    others = world.scheduler.others(world.clock.now_ms)
    if others:
        world.scheduler.prefer(others[number % len(others)])
        world.scheduler.give_way()
    return call.work()


def _kill(play: Play, number: int, call: Call) -> Any:
    """The process dies, before the call or after it."""
    if number % 2:
        answer = call.work()
        del answer
    actor = play.world.current
    driver = play.spark.driver_of(actor)
    if driver is not None and driver.process is actor.process:
        play.spark.crash(driver, number)
    else:
        play.world.kill(actor.process)
    play.world.scheduler.give_way()
    raise AssertionError("the dead do not go on")


# --- of Spark


def _crash(play: Play, number: int, call: Call) -> Any:
    """The driver dies, and with it most of its Python workers."""
    alive = play.spark.alive()
    if alive:
        play.spark.crash(alive[number % len(alive)], number // 4)
    if not play.world.current.process.alive:
        play.world.scheduler.give_way()
    return call.work()


def _take_over(play: Play, number: int, call: Call) -> Any:
    """Another driver begins, since this one is believed to be dead."""
    world, actor = play.world, play.world.current
    if len(play.spark.alive()) < 3:
        driver = play.spark.start()
        world.scheduler.prefer(driver.actor)
        if number % 4:
            world.later(number % 256, lambda: world.scheduler.prefer(actor))
        world.scheduler.give_way()
    return call.work()


def _stop(play: Play, number: int, call: Call) -> Any:
    """The query is stopped in the middle of something, and begins again in the same JVM."""
    alive = play.spark.alive()
    if alive:
        driver = alive[number % len(alive)]
        play.spark.crash(driver, number // 4)
        play.spark.start(driver.application)
    if not play.world.current.process.alive:
        play.world.scheduler.give_way()
    return call.work()


def _copy_task(play: Play, number: int, call: Call) -> Any:
    """A copy of a task begins, or its stage is run again."""
    stages = [driver.stage for driver in play.spark.alive() if driver.stage is not None]
    running = [(stage, attempt.task) for stage in stages for attempt in stage.running]
    if running:
        stage, task = running[number // 2 % len(running)]
        stage.begin(task, anew=bool(number % 2))
    return call.work()


# --- of time


def _pass_time(play: Play, number: int, call: Call) -> Any:
    seconds = (1, 30, 300, 3600)[number % 4]
    play.world.clock.pass_ms(1000 * seconds)
    return call.work()


# --- of brokers


def _move(play: Play, number: int, call: Call) -> Any:
    """Other brokers coordinate and lead."""
    play.cluster.move(number)
    return call.work()


def _away(play: Play, number: int, call: Call) -> Any:
    """A broker does not answer, for a while."""
    cluster = play.cluster
    node = cluster.nodes[number % len(cluster.nodes)]
    cluster.down.add(node)
    play.world.later(1 + number % 256, lambda: cluster.down.discard(node))
    return call.work()


def _age_out(play: Play, number: int, call: Call) -> Any:
    """Retention removes all records that are not of open transactions.

    Not under TV1: there the topic alone tells how a transaction ended that has timed out, and an
    operator has to say so when its records are gone.
    """
    del number
    if play.scenario.rules == 2:
        for partition in play.cluster.partitions.values():
            partition.age_out()
    return call.work()


KINDS: dict[str, tuple[Callable[[Play, int, Call], Any], float]] = {
    "lose call": (_lose_call, 3),
    "lose answer": (_lose_answer, 4),
    "delay": (_delay, 3),
    "double": (_double, 2),
    "hold up": (_hold_up, 5),
    "go first": (_go_first, 5),
    "kill": (_kill, 4),
    "crash": (_crash, 2),
    "take over": (_take_over, 3),
    "stop": (_stop, 1),
    "copy task": (_copy_task, 2),
    "pass time": (_pass_time, 2),
    "move": (_move, 0.5),
    "away": (_away, 0.5),
    "age out": (_age_out, 0.3),
}
"""By name, and how often each happens, relative to the others."""
