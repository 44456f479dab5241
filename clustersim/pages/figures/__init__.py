"""Figures for papers, one file a kind: `of` says whether it shows a run or a sweep, `draw` returns its picture."""
