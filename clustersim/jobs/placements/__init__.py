"""`place(wanted, free, seed) -> nodes`, one file a placement: which nodes of a cluster each job gets.

wanted: nodes of each job; free: the nodes that are free, ascending, at least as many as are wanted together.
Jobs take whole nodes; the result has for each job as many of the free ones, none twice.
"""
