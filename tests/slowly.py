"""The command line, with tasks of clusters that take a while: tests.slowly SECONDS WORDS."""

import sys
import time
from importlib import import_module

from streammiml.cluster import ClusterPool
from streammiml.verbs.main import VERBS, run


def main(seconds, words):
    plain = ClusterPool.map

    def slow_map(self, task, *more, **named):
        def slow(*values):
            time.sleep(seconds)
            return task(*values)

        return plain(self, slow, *more, **named)

    ClusterPool.map = slow_map
    # An interrupt of a module that is half loaded is none of a cluster.
    for target in ("distributed", "streammiml_tools.convert", *dict(VERBS.values())):
        import_module(target.partition(":")[0])
    print("begun", file=sys.stderr, flush=True)
    return run(words)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
