"""Rank arithmetic of the mesh: Megatron's order, groups as partitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.parallel.mesh import AXES, Mesh

meshes = st.builds(Mesh, *[st.integers(1, 5)] * 3)


def test_megatron_example():
    # megatron/core/parallel_state.py, docstring of initialize_model_parallel: 16 GPUs, tp 2, pp 4
    mesh = Mesh(tp=2, pp=4, dp=2)
    assert mesh.groups("tp").tolist() == [[i, i + 1] for i in range(0, 16, 2)]
    assert mesh.groups("dp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert mesh.groups("pp").tolist() == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert mesh.embedding().tolist() == [[0, 12], [1, 13], [2, 14], [3, 15]]


@given(meshes)
def test_groups_partition_the_ranks(mesh):
    for axis, degree in zip(AXES, mesh.shape, strict=True):
        groups = mesh.groups(axis)
        assert groups.shape == (mesh.size // degree, degree)
        assert sorted(groups.ravel().tolist()) == list(range(mesh.size))


@given(meshes, st.data())
def test_rank_and_coordinates_are_inverse(mesh, data):
    rank = data.draw(st.integers(0, mesh.size - 1))
    pp, dp, _, _, tp = (int(axis) for axis in mesh.coordinates(rank))
    assert mesh.rank(dp=dp, pp=pp, tp=tp) == rank


@given(meshes)
def test_activations_pass_to_the_next_stage_only(mesh):
    pairs = mesh.p2p()
    assert pairs.shape == ((mesh.pp - 1) * mesh.dp * mesh.tp, 2)
    assert np.all(pairs[:, 1] - pairs[:, 0] == mesh.dp * mesh.tp)


def test_no_embedding_group_without_a_pipeline():
    assert Mesh(8, 1, 4).embedding().shape == (0, 2)
    assert Mesh(8, 1, 4).p2p().shape == (0, 2)


@given(st.builds(Mesh, *[st.integers(1, 4)] * 5), st.permutations(AXES), st.integers(1, 5))
def test_groups_over_several_axes_join_those_of_each(mesh, axes, count):
    groups = mesh.groups(*axes[:count])
    assert sorted(groups.ravel().tolist()) == list(range(mesh.size))
    of = np.empty(mesh.size, np.int64)
    of[groups.ravel()] = np.repeat(np.arange(len(groups)), groups.shape[1])
    for axis in axes[:count]:
        assert (of[mesh.groups(axis)] == of[mesh.groups(axis)[:, :1]]).all()
