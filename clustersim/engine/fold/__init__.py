"""Equivalent ranks are simulated once, exactly."""
