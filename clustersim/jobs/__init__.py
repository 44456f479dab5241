"""Several jobs on one cluster: the nodes of each job, each job alone, and all jobs together."""
