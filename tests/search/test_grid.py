import tomllib

import pytest

from streammiml.config import LiftSpec, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.search.grid import GRIDS, key_of, settings_of, toml

BASE = TrainConfig()


def test_grid__the_papers_has_288_settings_all_different():
    found = settings_of("paper", BASE)
    assert len(found) == 3 * 3 * 4 * 4 * 2
    assert len({key_of(setting) for setting in found}) == len(found)
    assert {setting["step_size"] for setting in found} == {1e-4, 5e-4, 1e-3, 5e-3}


def test_grid__the_small_one_has_the_defaults_in_it():
    usual = {name: getattr(BASE, name) for name in GRIDS["small"]}
    assert usual in settings_of("small", BASE)


@pytest.mark.parametrize(("sparse", "many"), [(False, 32), (True, 16)])
def test_grid__the_best_has_the_defaults_in_it_and_lifts_where_rows_can_be_lifted(sparse, many):
    found = settings_of("best", BASE, sparse=sparse)
    assert len({key_of(setting) for setting in found}) == many
    assert {name: getattr(BASE, name) for name in found[0]} in found
    lifts = {LiftSpec.parse(setting["lift"]) for setting in found}
    assert any(lift.needs_dense_rows for lift in lifts) is not sparse
    assert any(lift.context for lift in lifts)


def test_grid__a_file_or_a_mapping(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text("subconcepts = [1, 2]\nscale = ['unit', 'standard']\n")
    want = [{"subconcepts": k, "scale": scale} for k in (1, 2) for scale in ("unit", "standard")]
    assert settings_of(path, BASE) == want
    assert settings_of({"subconcepts": [1, 2], "scale": ["unit", "standard"]}, BASE) == want


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("large", "^no grid is called 'large'; known: a file of TOML lists, best, paper, small$"),
        ("none.toml", "^none.toml cannot be read: "),
        ({"epochs": [1]}, "^no option of a grid is called 'epochs'; known: average, "),
        ({"seed": [1, 2]}, "^no option of a grid is called 'seed'"),
        ({"lift": "context"}, "^lift of a grid must be a list of values, got 'context'$"),
        ({"subconcepts": []}, r"^subconcepts of a grid must be a list of values, got \[\]$"),
        ({"subconcepts": [1, 0]}, "^subconcepts must be "),
    ],
)
def test_grid__refuses_what_cannot_be_tried(grid, message):
    with pytest.raises(StreammimlError, match=message):
        settings_of(grid, BASE)


def test_toml__reads_back():
    said = TrainConfig(subconcepts=3, lift="context", max_steps=70).recorded()
    want = {name: value for name, value in said.items() if value is not None}
    assert tomllib.loads(toml(said).decode()) == want
