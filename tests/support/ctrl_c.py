"""Ctrl-C during a search."""

from itertools import count

from clustersim.sweeps.evaluate import evaluate


def press_ctrl_c(monkeypatch, due) -> None:
    """Press Ctrl-C before the simulation of a search for which `due` (number of earlier ones, point) is true."""
    done = count()

    def pressed(case, point, **how):
        if due(next(done), point):
            raise KeyboardInterrupt
        return evaluate(case, point, **how)

    monkeypatch.setattr("clustersim.optimization.search.evaluate", pressed)
