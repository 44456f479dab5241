"""Scripts of a job."""

from clustersim.engine.program import Program, Task
from clustersim.engine.script import WrittenPasses, row_ends, scripts


def written(job, stages, schedule) -> tuple[Program, ...]:
    """Return the script of every pipeline rank of a placed job."""
    return scripts(job, WrittenPasses(tuple(stages)), row_ends(schedule, job.pipeline))


def by_action(script: Program) -> list[tuple[Task, ...]]:
    """Return the tasks of each action of a script, in order."""
    return [script.layout.parts[key] for key, microbatch in script.passes() if microbatch >= 0]
