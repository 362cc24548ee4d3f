"""The command line, with tasks of clusters that take a while: tests.slowly SECONDS WORDS."""

import sys
import time

from streammiml.cluster import ClusterPool
from streammiml.verbs.main import run


def main(seconds, words):
    plain = ClusterPool.map

    def slow_map(self, task, *more, **named):
        def slow(*values):
            time.sleep(seconds)
            return task(*values)

        return plain(self, slow, *more, **named)

    ClusterPool.map = slow_map
    return run(words)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
