import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml.measure.label_choice import chosen_labels

NAMES = ("sea", "sky", "a,b", "7")


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        (None, (0, 1, 2, 3)),
        ("all", (0, 1, 2, 3)),
        ("sky", (1,)),
        ("sky,sea", (1, 0)),
        ("sky, sea", (1, 0)),
        ("a,b", (2,)),
        ("7", (3,)),
        ("2", (2,)),
        (2, (2,)),
        (np.int64(1), (1,)),
        (["a,b", 0, np.int32(1)], (2, 0, 1)),
        (np.array([3, 1]), (3, 1)),
        (("sky",), (1,)),
    ],
)
def test_chosen_labels__are_names_or_numbers(labels, numbers):
    assert chosen_labels(labels, NAMES, 4) == numbers


def test_chosen_labels__of_a_model_without_names_are_numbers():
    assert chosen_labels("2,0", None, 3) == (2, 0)
    assert chosen_labels(None, None, 3) == (0, 1, 2)


def test_chosen_labels__a_label_may_be_called_all():
    assert chosen_labels("all", ("some", "all"), 2) == (1,)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("moon", "^no label is called 'moon'; known: sea, sky, a,b, 7$"),
        ("sea,moon", "^no label is called 'moon'; known: sea, sky, a,b, 7$"),
        (4, "^no label is called 4; known: sea, sky, a,b, 7$"),
        (-1, "^no label is called -1; known"),
        (True, "^no label is called True; known"),
        (1.0, "^no label is called 1.0; known"),
        ([], "^labels is empty; known: sea, sky, a,b, 7$"),
        ("", "^no label is called ''; known"),
        (["sea", 0], "^labels has 'sea' twice; give each label once$"),
    ],
)
def test_chosen_labels__refuses_labels_that_do_not_exist(labels, message):
    with pytest.raises(StreammimlError, match=message):
        chosen_labels(labels, NAMES, 4)


def test_chosen_labels__a_message_lists_some_of_many_names():
    names = [f"n{i}" for i in range(25)]
    with pytest.raises(StreammimlError, match=r"known: n0, n1, .*, n19 and 5 more$"):
        chosen_labels("x", names, 25)
    with pytest.raises(StreammimlError, match=r"^no label is called 25; known: 0 to 24$"):
        chosen_labels([25], None, 25)
    with pytest.raises(StreammimlError, match=r"^labels has 3 twice; give each label once$"):
        chosen_labels("3,3", None, 25)
