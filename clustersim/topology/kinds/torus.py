"""`kind: torus`, a grid whose dimensions are equal rings, or lines with open ends."""

from clustersim.config.fabric import Torus
from clustersim.topology.kinds.grid import torus as build

SPEC = Torus

__all__ = ["SPEC", "build"]
