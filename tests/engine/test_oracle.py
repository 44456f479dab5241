"""A simulation of its own, without folding, graphs or arrays, finds the same pipeline: sixteen processes, every message a flow.

It knows the schedule's rows, the seconds of passes, and of a message its latency, bytes and rate alone. It shares the links of
nodes by progressive filling, from the beginning at each change.
"""

from __future__ import annotations

import pytest
import simpy
from engine_cases import cluster, job

from clustersim.schedules.check import load
from clustersim.simulation import Simulator

NODES, GPUS = 4, 4


class Fabric:
    """Flows over links of one capacity, each at no more than its bound."""

    def __init__(self, env, capacity):
        self.env, self.capacity, self.flows, self.number = env, capacity, {}, 0
        self.changed = env.event()
        env.process(self.run())

    def send(self, links, latency, size, bound):
        yield self.env.timeout(latency)
        done, self.number = self.env.event(), self.number + 1
        self.flows[self.number] = [links, size, bound, done]
        self.changed.succeed()
        self.changed = self.env.event()
        yield done

    def rates(self):
        fixed, left = {}, dict(self.capacity)
        while len(fixed) < len(self.flows):
            open_ = {n: flow for n, flow in self.flows.items() if n not in fixed}
            users = {link: [n for n, flow in open_.items() if link in flow[0]] for link in left}
            level = min(
                [left[link] / len(own) for link, own in users.items() if own] + [flow[2] for flow in open_.values()]
            )
            for n, (links, _, bound, _) in open_.items():
                tight = any(left[link] / len(users[link]) <= level * (1 + 1e-12) for link in links)
                if tight or bound <= level * (1 + 1e-12):
                    fixed[n] = level
            for n in fixed.keys() & open_.keys():
                for link in open_[n][0]:
                    left[link] -= level
        return fixed

    def run(self):
        while True:
            rates, begun = self.rates(), self.env.now
            first = min((flow[1] / rates[n] for n, flow in self.flows.items()), default=float("inf"))
            wait = [self.changed] + ([self.env.timeout(first)] if self.flows else [])
            yield simpy.AnyOf(self.env, wait)
            gone = self.env.now - begun
            for n, rate in rates.items():
                flow = self.flows[n]
                flow[1] -= rate * gone
                if (
                    flow[1] <= 1e-14 * flow[2]
                ):  # rounding alone: a nanosecond taken off at each near tie adds up to 1e-7
                    self.flows.pop(n)[3].succeed()


def last_backward(schedule, passes, message, capacity, wait):
    """Return when the last backward pass of 4 stages on 4 nodes ends.

    passes: seconds by (letter, stage). message: latency in s, bytes, and bytes/s that it reaches alone.
    """
    env = simpy.Environment()
    fabric = Fabric(env, {(way, node): capacity for way in ("up", "down") for node in range(NODES)})
    here = {}
    ends = []

    def arrived(key):
        return here.setdefault(key, env.event())

    def stream(queue):  # one message after the other
        while True:
            links, key, sent = yield queue.get()
            yield from fabric.send(links, *message)
            arrived(key).succeed()
            sent.succeed()

    def rank(replica, stage):
        queues = {letter: simpy.Store(env) for letter in "FB"}
        for queue in queues.values():
            env.process(stream(queue))
        for place, letter, microbatch in schedule[stage]:
            source = stage - 1 if letter == "F" else stage + 1
            if 0 <= source < NODES:
                yield arrived((replica, letter, stage, microbatch))
            yield env.timeout(passes[letter, place])
            target = stage + 1 if letter == "F" else stage - 1
            if 0 <= target < NODES:
                sent = env.event()
                key = (replica, letter, target, microbatch)
                queues[letter].put(((("up", stage), ("down", target)), key, sent))
                if wait:
                    yield sent
        ends.append(env.now)

    for replica in range(GPUS):
        for stage in range(NODES):
            env.process(rank(replica, stage))
    while len(ends) < NODES * GPUS:
        env.step()
    return max(ends)


@pytest.mark.parametrize("rate", ["400Gb/s", "50Gb/s", "10Gb/s"])
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_pipelines_that_share_links_are_those_of_a_plain_simulation(name, wait, rate):
    fabric = f"{{kind: switch, link: {{rate: {rate}}}}}"
    simulator = Simulator(cluster(NODES, GPUS, 1, "shared", fabric))
    asked = job(
        training__global_batch=64,
        parallelism__tp=1,
        parallelism__pp=NODES,
        parallelism__schedule=name,
        parallelism__overlap__p2p=not wait,
    )
    for fold in (True, False):
        result = simulator.run(asked, ignore_memory=True, fold=fold)
        spans = result.record.spans
        passes = {(s.kind, s.stage): s.activity.compute for s in spans if s.kind in "FB"}
        [message] = {s.activity.segments[0].flow[1:4] for s in spans if s.kind == "send" and s.activity}
        nics = [tier for tier in result.topology.tiers if tier.name.startswith("nic")]
        [capacity] = {result.topology.capacity[tier.first] for tier in nics}
        schedule = load(name, NODES, asked.place(16, 4).microbatches)
        found = last_backward(schedule, passes, message, capacity, wait)
        assert max(s.end for s in spans if s.kind == "B") == pytest.approx(found, rel=1e-9)
        if rate == "10Gb/s":
            assert result.record.solves  # transfers met
