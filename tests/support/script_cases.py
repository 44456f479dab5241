"""Scripts of a job."""

from clustersim.engine.script import Script, WrittenPasses, row_ends, scripts


def written(job, stages, schedule) -> tuple[Script, ...]:
    """Return the script of every pipeline rank of a placed job."""
    return scripts(job, WrittenPasses.of(stages), row_ends(schedule, job.pipeline))
