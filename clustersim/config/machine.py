"""A machine file: constants estimated from measured steps of a cluster by `clustersim calibrate`, read by `--machine`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from clustersim.config.fields import Name, Spec, between

VERSION: Literal[1] = 1
"""Version of machine files; another version has keys of another meaning."""
Factor = Annotated[float, Field(gt=0, le=1000, strict=False)]
LogSpread = Annotated[float, Field(ge=0, le=10, strict=False)]
"""Standard deviation of a logarithm: 0.05 is about 5 %."""
Correlation = Annotated[float, Field(ge=-1, le=1, strict=False)]
DottedKey = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_][\w-]*(\.[\w-]+)*$")]


class MachineConstant(Spec):
    """One constant of the forecast, as estimated for this machine."""

    name: Name
    """Name as in `clustersim explain`."""
    factor: Factor
    """Factor on the default value."""
    spread: LogSpread
    """Standard deviation of the factor's logarithm."""
    usual_spread: LogSpread
    """Standard deviation of the factor's logarithm without measurements."""
    evidence: str = ""
    """Source of the factor."""
    keys: dict[DottedKey, Any] = Field(default_factory=dict)
    """Topology or workload values to replace, by dotted key."""
    correlations: Annotated[tuple[Correlation, ...], Field(strict=False)] = ()
    """Correlations with the constants before this one; none: independent."""


class MachineSpec(Spec):
    """Constants of one machine."""

    version: Literal[1]
    """Version of the format."""
    gpu: Name
    """GPU of the cluster; the file is refused for others."""
    evidence: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Measurements used."""
    remainder: LogSpread
    """Standard deviation of a step's log error with all constants known."""
    constants: Annotated[tuple[MachineConstant, ...], Field(strict=False), between(1, 64)]
    """Constants, each once."""
