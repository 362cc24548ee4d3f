import pytest

from streammiml.config import LiftSpec, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.search.grid import GRIDS, key_of, settings_of

BASE = TrainConfig()


def test_grid__the_papers_has_288_settings_all_different():
    settings = settings_of("paper", BASE)
    assert len(settings) == 3 * 3 * 4 * 4 * 2
    assert len({key_of(setting) for setting in settings}) == len(settings)
    assert {setting["step_size"] for setting in settings} == {1e-4, 5e-4, 1e-3, 5e-3}


def test_grid__the_small_one_has_the_defaults_in_it():
    defaults = {name: getattr(BASE, name) for name in GRIDS["small"]}
    assert defaults in settings_of("small", BASE)


@pytest.mark.parametrize(("sparse", "n_settings"), [(False, 32), (True, 16)])
def test_grid__the_best_has_the_defaults_in_it_and_lifts_where_rows_can_be_lifted(
    sparse, n_settings
):
    settings = settings_of("best", BASE, sparse=sparse)
    assert len({key_of(setting) for setting in settings}) == n_settings
    assert {name: getattr(BASE, name) for name in settings[0]} in settings
    lifts = {LiftSpec.parse(setting["lift"]) for setting in settings}
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
