"""Prices, power and carbon: `defaults.yaml` as it is, or with the keys of a file of the user's in their place."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from clustersim.config.fields import Count, LineRate, Spec, validate
from clustersim.config.overrides import Overridden
from clustersim.config.yaml import Document, own, read
from clustersim.errors import shown


def _alone(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(f"{shown(value)} must be a number alone, in the unit of the default")
    return value


DEFAULTS = Path(__file__).with_name("defaults.yaml")
Money = Annotated[float, Field(strict=False, gt=0, le=1e12), BeforeValidator(_alone)]
Date = Annotated[str, BeforeValidator(str)]
_Part = Annotated[float, Field(strict=False, gt=0, le=1), BeforeValidator(_alone)]
_Share = Annotated[float, Field(strict=False, ge=0, lt=1), BeforeValidator(_alone)]


class UnitPrice(Spec):
    """What one of something costs."""

    price: Money
    """USD: of a GPU-hour, a node, a cable, or a Gb/s of port or module."""
    low: Money | None = None
    """The least that someone asks."""
    high: Money | None = None
    """The most."""
    power: Annotated[float, Field(strict=False, ge=0, le=1e6), BeforeValidator(_alone)] = 0.0
    """W a Gb/s, of switches and optics."""
    date: Date = "given"
    """When it held."""
    source: str = "given"
    """Its source."""


class NodePrice(UnitPrice):
    """What one node costs."""

    gpus: Count | None = None
    """GPUs of that node; one with others costs in proportion. None: a node costs this, whatever it has."""


class SwitchPrice(UnitPrice):
    """Switches of one generation, by Gb/s of port."""

    rate: LineRate
    """Of the fastest cable that they take."""


class Optics(Spec):
    """The modules at the ends of a cable."""

    nic: UnitPrice
    """At the NIC."""
    switch: UnitPrice
    """At a switch."""


class _Figure(Spec):
    date: Date = "given"
    source: str = "given"


class PositiveFigure(_Figure):
    """A number above zero with its source."""

    value: Annotated[float, Field(strict=False, gt=0, le=1e6), BeforeValidator(_alone)]
    """The number."""


class PartFigure(_Figure):
    """A share above zero, at most one, with its source."""

    value: _Part
    """The share."""


class OverheadFigure(_Figure):
    """A factor of one or more with its source."""

    value: Annotated[float, Field(strict=False, ge=1, le=10), BeforeValidator(_alone)]
    """The factor."""


class ShareFigure(_Figure):
    """A share from zero to below one with its source."""

    value: _Share
    """The share."""


class PowerFigures(Spec):
    """What turns a node's label into kWh, dollars and CO2."""

    load: PartFigure
    """Share of its maximum that a node draws when training."""
    node_over_gpus: OverheadFigure
    """Maximum of a node over that of its GPUs, where its file says none."""
    pue: OverheadFigure
    """Power of the building over that of the machines."""
    electricity: PositiveFigure
    """USD a kWh."""
    carbon: PositiveFigure
    """Grams of CO2e a kWh."""


class Owned(Spec):
    """What turns a price into one a GPU-hour."""

    life: PositiveFigure
    """Years."""
    residual: ShareFigure
    """Share of the price that is left then."""
    maintenance: ShareFigure
    """Share of the price a year."""
    utilisation: PartFigure
    """Share of the time in which someone trains."""


class Figures(Spec):
    """All of them."""

    rent: dict[str, UnitPrice]
    """A GPU-hour, by GPU."""
    node: dict[str, NodePrice]
    """A node, by GPU."""
    switch: Annotated[tuple[SwitchPrice, ...], Field(strict=False, min_length=1)]
    """Switches, the slowest first."""
    optics: Optics
    """Modules."""
    cable: UnitPrice
    """A fibre."""
    power: PowerFigures
    """Power, its price and its carbon."""
    owned: Owned
    """Machines of one's own."""


def load(path: str | Path | None = None, rent: float | None = None) -> Figures:
    """Return the figures, with those of a YAML file in their place. rent: USD a GPU-hour of every GPU.

    Raises ConfigError for what is wrong in the file, and for a rent that is not above zero.
    """
    base = own(DEFAULTS)
    if path is None and rent is None:
        return _shipped()
    written = read(path) if path else Document("--price", {}, {})
    data = merged(base.data, written.data)
    if rent is not None:
        asked = {"price": rent, "low": rent, "high": rent, "date": "given", "source": "--price"}
        data["rent"] = dict.fromkeys((*data["rent"], *_gpus()), asked)
    document = Overridden(written.path, data, written.positions, {} if path else {(): ("--price", 0, 0)})
    return validate(Figures, document)


@cache
def _shipped() -> Figures:
    return validate(Figures, own(DEFAULTS))


def _gpus() -> list[str]:
    from clustersim.hardware.gpus import everything

    return [gpu.name for gpu in everything()]


def merged(base: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults with the given keys in their place; a bare one stands for the figure's value or price."""
    result = dict(base)
    for key, value in given.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = merged(old, value)
        elif isinstance(old, dict) and isinstance(value, int | float | str):
            result[key] = {("value" if "value" in old else "price"): value}
        else:
            result[key] = value
    return result
