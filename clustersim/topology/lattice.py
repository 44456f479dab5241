"""Grids of positions whose lines are rings, open lines, full meshes or crossbars, with paths dimension by dimension.

Position p has coordinate p // stride % size in a dimension; the positions that differ in it alone are a line. Cable i of a
ring joins coordinates i and i + 1, cable j(j-1)/2 + i of a mesh joins i < j, cable i of a crossbar joins i and the switch.
The links of a dimension are its cables line by line, first all upwards (from the end named first), then all downwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from clustersim.arrays import Ints, divide
from clustersim.topology.detours import Wired
from clustersim.topology.hops import ClassNumbers, RouteSegment
from clustersim.topology.specs import LinkRange, both_ways

AXES = "xyzwvu"
"""Names of the dimensions of a torus."""
LONGEST = 4096
"""Largest number of positions in a ring: each hop of a path is a column of the routes."""


class Dim(NamedTuple):
    """One dimension."""

    name: str
    """Name of the dimension's links, such as `x`."""
    kind: Literal["ring", "line", "mesh", "switch"]
    """Connections along a line: each position to the next, each to each, or all to a crossbar."""
    size: int
    """Positions per line."""
    rate: float
    """Bytes/s of each link."""
    latency: float
    """Seconds of each link."""
    cables: int = 1
    """Physical cables per link."""
    switch: str = "switch"
    """Name of a crossbar."""

    @property
    def per_line(self) -> int:
        """Number of cables of one line."""
        open_line = self.kind == "line" or self.size <= 2
        ring = self.size - 1 if open_line else self.size
        return {"mesh": self.size * (self.size - 1) // 2, "switch": self.size}.get(self.kind, ring)

    @property
    def width(self) -> int:
        """Largest number of links that a path crosses in this dimension."""
        most = {"ring": self.size // 2, "line": self.size - 1}.get(self.kind, 2 if self.kind == "switch" else 1)
        return most if self.size > 1 else 0


@dataclass(frozen=True, slots=True)
class Lattice(Wired):
    """Several equal grids."""

    dims: tuple[Dim, ...]
    """Dimensions of one grid, in the order in which paths take them."""
    positions: int
    """Number of positions of all grids together."""
    place: str
    """Word for a position in names, such as `router`."""
    stride: int = 1
    """Distance of neighbours in the first dimension, in positions: the number of interleaved grids."""
    share: int = 1
    """Endpoints per position: endpoint e is at position e // share."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance of neighbours in each dimension."""
        return tuple(self.stride * prod(d.size for d in self.dims[:i]) for i in range(len(self.dims)))

    @property
    def cables(self) -> tuple[int, ...]:
        """Number of cables of each dimension."""
        return tuple(self.positions // d.size * d.per_line for d in self.dims)

    @property
    def firsts(self) -> tuple[int, ...]:
        """Number of the first link of each dimension, followed by the number of links."""
        return tuple(accumulate((2 * c for c in self.cables), initial=0))

    def ranges(self) -> Iterator[LinkRange]:
        """Yield the links of each dimension and direction."""
        for dim, cables in zip(self.dims, self.cables, strict=True):
            yield from both_ways(dim.name, cables, dim.rate, dim.latency, dim.cables)

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from each source to its destination in the same grid, dimension by dimension (pairs, width).

        Each dimension has `Dim.width` columns; -1 fills the columns that a path does not need.
        """
        here, there = source // self.share, destination // self.share
        columns = np.full((len(here), sum(d.width for d in self.dims)), -1, np.int64)
        column = 0
        for d, (dim, stride) in enumerate(zip(self.dims, self.strides, strict=True)):
            (line, a), (_, b) = _line_of(here, stride, dim.size), _line_of(there, stride, dim.size)
            moves = np.flatnonzero(a != b)
            if 0 < len(moves) == len(a):
                columns[:, column : column + dim.width] = self._links(d, line, a, b)
            elif len(moves):
                columns[moves, column : column + dim.width] = self._links(d, line[moves], a[moves], b[moves])
            if d + 1 < len(self.dims):  # dimension-ordered: the next one starts where this one's coordinate has arrived
                here = here + (b - a) * stride
            column += dim.width
        return columns

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return (class as a source, class as a destination) of each endpoint; each class is its position."""
        return self.vertex(endpoint), self.vertex(endpoint)

    def segments(self) -> list[RouteSegment]:
        """Return one segment of the routes per dimension (see RouteSegment)."""
        position, segments = np.arange(self.positions * self.share) // self.share, list[RouteSegment]()
        for dim, stride, (first, end) in zip(self.dims, self.strides, pairwise(self.firsts), strict=True):
            # The links of a path in a dimension depend on the source's coordinates from this dimension on (earlier ones are
            # already the destination's), and on the destination's coordinates up to this one
            source = position // stride * self.stride + position % self.stride
            segments.append(RouteSegment(first, end, source, position % (stride * dim.size), None))
        return segments

    def _links(self, d: int, line: Ints, a: Ints, b: Ints) -> Ints:
        """Return the links from coordinates `a` to `b` on `line` of dimension `d` (pairs, width); -1 fills shorter rows.

        line: index of each pair's line in the dimension. No pair may have equal coordinates.
        """
        dim, cables = self.dims[d], self.cables[d]
        first = self.firsts[d] + line * dim.per_line
        if dim.kind == "switch":
            pair = np.empty((len(a), 2), np.int64)
            np.add(first, a, out=pair[:, 0])
            np.add(first + cables, b, out=pair[:, 1])
            return pair
        if dim.kind == "mesh":
            low, high = np.minimum(a, b), np.maximum(a, b)
            cable, down = pair_number(low, high)[:, np.newaxis], (a > b)[:, np.newaxis].astype(np.int64)
        else:
            cable, down = _steps(dim, a, b)
        links = first[:, np.newaxis] + cable + down * cables
        return np.where(cable < 0, -1, links)

    def vertex(self, endpoint: Ints) -> Ints:
        """Return the vertex of each endpoint: its position."""
        return endpoint // self.share

    def cable_ends(self, part: int, cable: Ints) -> tuple[Ints, Ints]:
        """Return the vertices at the two ends of each cable of dimension `part`, the end named first and the other end.

        Vertices are the positions, followed by the crossbars of all dimensions.
        """
        dim, stride = self.dims[part], self.strides[part]
        line, i = np.divmod(cable, dim.per_line)
        line_start = line // stride * stride * dim.size + line % stride
        if dim.kind == "switch":
            crossbars = sum(self.positions // earlier.size for earlier in self.dims[:part] if earlier.kind == "switch")
            return line_start + i * stride, self.positions + crossbars + line
        low, high = i, (i + 1) % dim.size
        if dim.kind == "mesh":
            low, high = pair_ends(i)
        return line_start + low * stride, line_start + high * stride

    def name(self, vertex: int) -> str:
        """Return the name of a vertex, such as `router[3]`; crossbars, numbered after all positions, are called `switch[0]`.

        Raises IndexError for a number beyond the last.
        """
        if vertex < self.positions:
            return f"{self.place}[{vertex}]"
        vertex -= self.positions
        for dim in self.dims:
            count = self.positions // dim.size if dim.kind == "switch" else 0
            if vertex < count:
                return f"{dim.switch}[{vertex}]"
            vertex -= count
        raise IndexError("no such vertex")

    def bisection(self) -> float:
        """Return the bytes/s in one direction between two halves of the fabric, summed over all grids.

        Each dimension is cut in the middle, and the smallest cut counts. Return 0 if no dimension has two positions.
        """
        grid_size = prod(d.size for d in self.dims)
        cuts = [(_cut(d) * grid_size / d.size, d.size) for d in self.dims if d.size > 1]
        return min(cuts, key=lambda pair: pair[0])[0] * self.positions / grid_size if cuts else 0.0


def _line_of(position: Ints, stride: int, size: int) -> tuple[Ints, Ints]:
    """Return (line, coordinate on the line) of each position, for a dimension of `size` positions per line.

    stride: distance of neighbours on a line, in positions.
    """
    if stride == 1:
        return divide(position, size)
    above, inner = divide(position, stride)
    outer_index, coordinate = divide(above, size)
    return outer_index * stride + inner, coordinate


def _steps(dim: Dim, a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Return the cables on the path from coordinates a to b of a ring or line (pairs, width), and 1 for paths downwards.

    -1 fills shorter rows. The second array has one column (pairs, 1): a path crosses all its cables in the same direction.
    """
    ahead = (b - a) % dim.size if dim.kind == "ring" else b - a
    other_way = dim.size - ahead
    tie = (ahead == other_way) & (a % 2 == 1)  # half of the positions go each way, so that loads are equal
    back = ((ahead > other_way) | tie) if dim.kind == "ring" else ahead < 0
    steps = np.where(back, other_way, ahead) if dim.kind == "ring" else np.abs(ahead)
    step = np.arange(dim.width)
    cable = np.where(back[:, np.newaxis], a[:, np.newaxis] - step - 1, a[:, np.newaxis] + step) % dim.size
    return np.where(step < steps[:, np.newaxis], cable, -1), back[:, np.newaxis].astype(np.int64)


def _cut(dim: Dim) -> float:
    """Return the bytes/s per direction between the halves of one line, if it is cut in the middle."""
    half = dim.size // 2
    crossing = {"ring": 1 if dim.size <= 2 else 2, "line": 1, "mesh": half * (dim.size - half), "switch": half}
    return crossing[dim.kind] * dim.rate


def pair_number(low: Ints, high: Ints) -> Ints:
    """Return the numbers k(k-1)/2 + i of pairs `low` = i < `high` = k."""
    return high * (high - 1) // 2 + low


def pair_ends(pair: Ints) -> tuple[Ints, Ints]:
    """Return (i, k) with i < k of each pair with number k(k-1)/2 + i."""
    # the larger root of k(k-1)/2 = pair, rounded down; exact below 2^49, as sqrt is correctly rounded and 8·pair + 1 a double
    high = ((1 + np.sqrt(8 * pair + 1)) // 2).astype(np.int64)
    return pair - high * (high - 1) // 2, high
