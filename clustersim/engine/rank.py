"""What one rank does, instruction by instruction: a long-lived SimPy process, its streams by callbacks."""

from __future__ import annotations

from collections.abc import Callable, Generator

import simpy

from clustersim.engine.program import Post, Program, Receive, Run, Send, Span
from clustersim.engine.world import Stream, World, fire


def play_rank(world: World, rank: int, program: Program) -> Generator[simpy.Event, object, None]:
    """Play the program of a rank cell."""
    streams: dict[str, Stream] = {}
    for step, microbatch in program.instructions():
        world.at[rank] = step
        kind = type(step)
        if kind is Run:
            yield _run(world, rank, step, microbatch)  # type: ignore[arg-type]
        elif kind is Receive:
            yield from _receive(world, rank, step, microbatch)  # type: ignore[arg-type]
        elif kind is Send or kind is Post:
            stream = streams.setdefault(step.group[0], Stream(world, rank))  # type: ignore[union-attr, index]
            job = _send(world, rank, step, microbatch) if kind is Send else _post(world, rank, step)  # type: ignore[arg-type]
            stream.put(job)
            if kind is Send and step.wait:  # type: ignore[union-attr]
                yield from _drain(world, rank, stream, "send")
        elif step.family in streams:  # type: ignore[union-attr]
            yield from _drain(world, rank, streams[step.family], step.family, step.first)  # type: ignore[union-attr]


def _run(world: World, rank: int, step: Run, microbatch: int) -> simpy.Event:
    event = simpy.Event(world.env)
    asked = world.env.now

    def done(begun: float, marks: list[float] | None) -> None:
        now = world.env.now
        world.meter.tick()
        world.spans.append(
            Span(rank, "compute", step.kind, step.stage, microbatch, asked, begun, now, step.activity, marks)
        )
        fire(event)

    world.together(step.group, rank, step.activity, done)
    return event


def _receive(world: World, rank: int, step: Receive, microbatch: int) -> Generator[simpy.Event, object, None]:
    box, key, asked = world.box(step.group), (step.stage, microbatch), world.env.now
    if key not in box.arrived:
        yield box.wait(key)
        now = world.env.now
        start = min(max(asked, box.posted[key]), now)
        world.spans.append(Span(rank, "wait", "receive", step.stage, microbatch, asked, start, now, None, None))


def _send(world: World, rank: int, step: Send, microbatch: int) -> Callable[[Callable[[], None]], None]:
    box, key, asked = world.box(step.group), (step.stage, microbatch), world.env.now
    box.posted[key] = asked
    name = step.group[0]

    def begin(next_job: Callable[[], None]) -> None:
        begun = world.env.now

        def done(marks: list[float] | None) -> None:
            now = world.env.now
            world.spans.append(
                Span(rank, name, "send", step.stage, microbatch, asked, begun, now, step.activity, marks)
            )
            box.deliver(key)
            next_job()

        world.fabric.start(step.activity, done)

    return begin


def _post(world: World, rank: int, step: Post) -> Callable[[Callable[[], None]], None]:
    asked = world.env.now

    def begin(next_job: Callable[[], None]) -> None:
        def done(begun: float, marks: list[float] | None) -> None:
            span = Span(
                rank, step.group[0], step.kind, step.stage, -1, asked, begun, world.env.now, step.activity, marks
            )
            world.spans.append(span)
            next_job()

        world.together(step.group, rank, step.activity, done)

    return begin


def _drain(
    world: World, rank: int, stream: Stream, kind: str, count: int | None = None
) -> Generator[simpy.Event, object, None]:
    pending = stream.pending(count)
    if pending:
        asked = world.env.now
        yield stream.drained(pending)
        world.spans.append(Span(rank, "wait", kind, -1, -1, asked, asked, world.env.now, None, None))
