"""Values by key, for one thread at a time."""

import threading

from streammiml._base.keyed_cache import KeyedCache


def test_using__gives_the_same_value_again_and_keeps_few_keys():
    cache = KeyedCache(list, 2)
    for key in "abac":
        with cache.using(key) as value:
            value.append(key)
    found = {}
    for key in "acb":
        with cache.using(key) as value:
            found[key] = list(value)
    # "b" was used least recently when "c" came.
    assert found == {"a": ["a", "a"], "c": ["c"], "b": []}


def test_forget__lets_the_next_use_begin_anew():
    cache = KeyedCache(list, 2)
    with cache.using("a") as value:
        value.append(1)
    cache.forget("a")
    cache.forget("never used")
    with cache.using("a") as value:
        assert value == []


def test_using__one_thread_at_a_time_but_other_keys_do_not_wait():
    cache, order = KeyedCache(list, 2), []

    def use():
        with cache.using("a"):
            order.append("second")

    with cache.using("a"):
        thread = threading.Thread(target=use)
        thread.start()
        with cache.using("b"):
            thread.join(0.2)
            order.append("first")
    thread.join()
    assert order == ["first", "second"]
