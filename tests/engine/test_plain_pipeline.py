"""A simulation of its own, without folding, plans or arrays, finds the same pipeline: sixteen processes, every message a flow.

It knows the order of passes, their seconds, and of a message its latency, bytes and rate alone. It shares the NICs of nodes by
progressive filling, from the beginning at each change.
"""

from __future__ import annotations

import pytest
import simpy
from engine_cases import cluster, job

from clustersim.schedules.check import load
from clustersim.simulation import Simulator

NODES, GPUS = 4, 4


def rates(flows, capacity):
    """Return the rate of each flow (links, bytes left, rate alone, event): all rise together until a link is full."""
    fixed, left = {}, dict.fromkeys({link for flow in flows for link in flow[0]}, capacity)
    while len(fixed) < len(flows):
        rising = [n for n in range(len(flows)) if n not in fixed]
        users = {link: sum(link in flows[n][0] for n in rising) for link in left}
        level = {n: min(flows[n][2], *(left[link] / users[link] for link in flows[n][0])) for n in rising}
        for n in [n for n in rising if level[n] <= min(level.values()) * (1 + 1e-12)]:
            fixed[n] = level[n]
            for link in flows[n][0]:
                left[link] -= level[n]
    return [fixed[n] for n in range(len(flows))]


def last_backward(order, seconds, message, capacity):
    """Return when the last backward pass of 4 stages on 4 nodes ends, if ranks wait until their messages are sent.

    seconds: of passes by (letter, stage). message: latency in s, bytes, and bytes/s that it reaches alone.
    """
    env, flows, here = simpy.Environment(), [], {}
    changed = [env.event()]
    latency, size, alone = message

    def share():
        while True:
            now, speeds = env.now, rates(flows, capacity)
            first = min((flow[1] / speed for flow, speed in zip(flows, speeds, strict=True)), default=float("inf"))
            yield simpy.AnyOf(env, [changed[0], *([env.timeout(first)] if flows else [])])
            for flow, speed in zip(list(flows), speeds, strict=False):
                flow[1] -= speed * (env.now - now)
                if flow[1] <= 1e-12 * size:
                    flows.remove(flow)
                    flow[3].succeed()

    def rank(replica, stage):
        for _, letter, microbatch in order[stage]:
            step = 1 if letter == "F" else -1
            if 0 <= stage - step < NODES:
                yield here.setdefault((replica, letter, stage, microbatch), env.event())
            yield env.timeout(seconds[letter, stage])
            if 0 <= (target := stage + step) < NODES:
                yield env.timeout(latency)
                sent = here.setdefault((replica, letter, target, microbatch), env.event())
                flows.append([(("up", stage), ("down", target)), size, alone, sent])
                changed[0].succeed()
                changed[0] = env.event()
                yield sent

    env.process(share())
    ranks = [env.process(rank(replica, stage)) for replica in range(GPUS) for stage in range(NODES)]
    env.run(simpy.AllOf(env, ranks))
    return env.now


@pytest.mark.parametrize("fold", [True, False])
def test_a_pipeline_that_shares_links_is_that_of_a_plain_simulation(fold):
    simulator = Simulator(cluster(NODES, GPUS, 1, "shared", "{kind: switch, link: {rate: 10Gb/s}}"))
    asked = job(training__global_batch=64, parallelism__pp=NODES, parallelism__overlap__p2p=False)
    result = simulator.run(asked, ignore_memory=True, fold=fold)
    spans = result.record.spans
    seconds = {(span.kind, span.stage): span.activity.timing.compute for span in spans if span.kind in "FB"}
    [message] = {span.activity.segments[0].flow[1:4] for span in spans if span.kind == "send" and span.activity}
    [capacity] = {result.topology.capacity[tier.first] for tier in result.topology.tiers if tier.name.startswith("nic")}
    order = load("1f1b", NODES, asked.place(16, 4).microbatches, 1)
    found = last_backward(order, seconds, message, capacity)
    assert max(span.end for span in spans if span.kind == "B") == pytest.approx(found, rel=1e-9)
    assert result.record.solves  # transfers met
