"""The shape of a topology file: keys of sections, lists and names, before their values are validated.

Values are replaced in a file of this shape, and the result is validated as `TopologySpec`. So a replaced value may be invalid in
the file, but a section may not be a number.
"""

from pydantic import ConfigDict

from clustersim.config.fields import Section, Spec


class OpenSection(Spec):
    """Base of sections whose other keys are validated later."""

    model_config = ConfigDict(extra="allow")


class PoolShape(OpenSection):
    """Nodes of one type."""

    node: str | Section | None = None
    """Name of the node type, or its section."""


class ClusterShape(PoolShape):
    """Nodes of one type, or several pools."""

    pools: list[PoolShape] | None = None
    """Node types."""


class TopologyShape(OpenSection):
    """A topology file."""

    cluster: ClusterShape = ClusterShape()
    """Nodes of the cluster."""
    fabric: Section | None = None
    """Network between nodes; None: one node."""
    nodes: Section | None = None
    """Node types by name."""
