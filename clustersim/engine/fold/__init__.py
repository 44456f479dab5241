"""Ranks that nothing can tell apart become one, exactly."""
