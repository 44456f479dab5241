"""Why a step takes as long as it does: its critical path, exact what-ifs, and what differs between results."""
