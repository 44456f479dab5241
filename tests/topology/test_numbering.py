"""GPUs and NICs are numbered node after node: every answer against a plain count."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.topology.numbering import numbered


@st.composite
def runs(draw):
    """Return nodes in runs: how many, NICs of one, the NIC of each of its GPUs."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        nics = draw(st.integers(1, 4))
        gpus = nics * draw(st.integers(1, 3))
        found.append((draw(st.integers(1, 3)), nics, np.arange(gpus) * nics // gpus))
    return found


def counted(runs):
    """Return (node, place, NIC) of every GPU, and the first GPU of every NIC."""
    gpus, owners, node, first = [], [], 0, 0
    for nodes, nics, nic_of in runs:
        for _ in range(nodes):
            for local, nic in enumerate(nic_of.tolist()):
                owners += [len(gpus)] * (first + nic == len(owners))
                gpus.append((node, local, first + nic))
            node, first = node + 1, first + nics
    return gpus, owners


@given(runs())
def test_every_gpu_is_where_a_count_puts_it(runs):
    found, (gpus, owners) = numbered(runs), counted(runs)
    every = np.arange(found.gpus)
    assert list(zip(*(x.tolist() for x in found.split(every)), found.nic.tolist(), strict=True)) == gpus
    assert found.node_of(every).tolist() == [node for node, _, _ in gpus]
    assert found.owners().tolist() == owners
    assert found.gpus_of(np.arange(found.nodes)[::-1]).tolist() == sorted(every, key=lambda gpu: (-gpus[gpu][0], gpu))
    assert [found.place("gpu", gpu) for gpu in every.tolist()] == [one[:2] for one in gpus]
    for nic, owner in enumerate(owners):
        node = gpus[owner][0]
        assert found.place("nic", nic) == (node, nic - found.first_nic[node])
    sizes = {sum(one[0] == node for one in gpus) for node in range(found.nodes)}
    assert found.widths == tuple(sorted(sizes))


@given(runs(), st.data())
def test_nodes_that_are_left_keep_their_order_and_their_nics(runs, data):
    whole = numbered(runs)
    alive = np.array(sorted(data.draw(st.sets(st.integers(0, whole.nodes - 1), min_size=1))))
    left, kept = whole.only(alive), whole.gpus_of(alive)
    assert left.built is whole
    assert left.nic.tolist() == whole.nic[kept].tolist()
    node, local = left.split(np.arange(left.gpus))
    assert [alive[node].tolist(), local.tolist()] == [x.tolist() for x in whole.split(kept)]
