"""The turns of a round on the workers of a pool, which keep the weights of the round before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from streammiml._base.pool_interface import Pool
from streammiml.blocks.replica_streams import StreamPlace
from streammiml.learn.reduction import GroupResult, sum_group
from streammiml.learn.replica import NoWeights, TurnResult, take_sent_turn
from streammiml.learn.round_weights import RoundStart, SentStart

SENT_BYTES = 4 << 20
"""If R times what is sent takes at most this, it is sent with every turn. More is sent once, and
workers copy it from each other; if there are several groups of replicas, workers also sum the
changes of each group. That takes longer to begin."""


class WorkerTurns:
    """Takes the turns of one round, and sums the changes of each group.

    This process holds the changes of one group, unless all changes are small. Turns whose workers
    lack the weights of the round before are taken again, with all weights.
    """

    def __init__(
        self,
        pool: Pool,
        start: RoundStart,
        job: Any,
        prefer: Callable[[StreamPlace], str | None],
    ) -> None:
        self._pool, self._start, self._job, self._prefer = pool, start, job, prefer
        self._shared: list[Any] = []
        self.sent_bytes = 0
        """Bytes that were sent to workers."""

    def results(self, groups: Sequence[Sequence[StreamPlace]]) -> Iterator[GroupResult]:
        """Yield the results of each group, in order."""
        n_turns = sum(map(len, groups))
        given = self._given(SentStart.of(self._start), n_turns)
        if len(groups) == 1 or not self._shared:
            turns = [turn for group in groups for turn in group]
            answers = self._map(turns, given)
            for group in groups:
                yield GroupResult.of(self._completed([next(answers) for _ in group]))
        else:
            for group, sums in zip(groups, self._map_groups(groups, given), strict=True):
                yield sums if isinstance(sums, GroupResult) else self._summed_again(group)
        for shared in self._shared:
            self._pool.release(shared)

    def _given(self, sent: SentStart, n_turns: int) -> Any:
        """What tasks receive: the beginning itself, or a future of it."""
        self.sent_bytes += n_turns * sent.nbytes
        if n_turns * sent.nbytes <= SENT_BYTES:
            return sent
        self._shared.append(self._pool.share(sent))
        return self._shared[-1]

    def _whole(self, n_turns: int) -> Any:
        return self._given(SentStart.of(self._start, whole=True), n_turns)

    def _map(self, turns: Sequence[StreamPlace], given: Any) -> Iterator[TurnResult | NoWeights]:
        return self._pool.map(take_sent_turn, turns, given, self._job, prefer=self._prefer)

    def _map_groups(
        self, groups: Sequence[Sequence[StreamPlace]], given: Any
    ) -> Iterator[GroupResult | NoWeights]:
        return self._pool.map_groups(
            take_sent_turn, groups, sum_group, given, self._job, prefer=self._prefer
        )

    def _completed(self, answers: list[TurnResult | NoWeights]) -> list[TurnResult]:
        """Take the turns of a group that lacked weights again."""
        lacking = [answer.at for answer in answers if isinstance(answer, NoWeights)]
        again = self._map(lacking, self._whole(len(lacking))) if lacking else iter(())
        turns = [next(again) if isinstance(answer, NoWeights) else answer for answer in answers]
        assert all(isinstance(turn, TurnResult) for turn in turns), "all weights were sent"
        return [turn for turn in turns if isinstance(turn, TurnResult)]

    def _summed_again(self, group: Sequence[StreamPlace]) -> GroupResult:
        """Take all turns of a group again: no process has all of their changes."""
        [sums] = self._map_groups([group], self._whole(len(group)))
        assert isinstance(sums, GroupResult), "all weights were sent"
        return sums
