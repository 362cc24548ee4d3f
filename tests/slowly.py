"""The command line, with tasks of clusters that take a while: tests.slowly SECONDS WORDS."""

import sys
import time
from importlib import import_module

from streammiml._base.cluster_pool import ClusterPool
from streammiml.verbs.main import VERBS, run


def main(seconds, words):
    def slowed(plain):
        def slow_map(self, task, *more, **named):
            def slow(*values):
                time.sleep(seconds)
                return task(*values)

            if self._is_own:
                print("tasks begin", file=sys.stderr, flush=True)
            return plain(self, slow, *more, **named)

        return slow_map

    ClusterPool.map = slowed(ClusterPool.map)
    ClusterPool.map_reduce = slowed(ClusterPool.map_reduce)
    # An interrupt while a module loads would not test clusters.
    targets = [verb.target for verb in VERBS.values() if verb.target is not None]
    for target in ("distributed", "streammiml_tools.convert", *targets):
        import_module(target.partition(":")[0])
    print("begun", file=sys.stderr, flush=True)
    return run(words)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
