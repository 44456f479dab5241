"""A Ray cluster on loopback for tests: a head without CPUs and nodes of one CPU. Prints its address; `kill` kills a node."""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

STORE = 80_000_000
"""Bytes of a node's object store, about the least that Ray takes."""


def main() -> None:
    """Serve until standard input ends."""
    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(int(sys.argv[1]))]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        elif line.strip() == "add":
            nodes.append(cluster.add_node(num_cpus=1, object_store_memory=STORE))
        print(len(nodes), flush=True)
    cluster.shutdown()


main()
