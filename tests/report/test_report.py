"""Tables and pictures of a run."""

import csv
import io

from PIL import Image

from fedprompt.report.plots import client_bars, learning_curves, png
from fedprompt.report.table import Table

RECORDS = [
    {"round": 1, "training": {"cross_entropy": 2.0, "loss": 2.5}, "average": 0.5, "worst_local": 0.25},
    {"round": 2, "training": {"cross_entropy": 1.0, "loss": 1.5}},
    {"round": 3, "training": {"cross_entropy": 0.5, "loss": 1.0}, "average": 0.75, "worst_local": 0.5},
]


def test_a_table_has_rows_and_columns():
    table = Table([{"round": 1, "average": 0.5}, {"round": 2, "average": None}])
    assert len(table) == 2
    assert table[0] == {"round": 1, "average": 0.5}
    assert table["round"] == [1, 2]
    assert [row["round"] for row in table] == [1, 2]


def test_a_value_that_is_missing_is_an_empty_cell_not_a_shift():
    table = Table([{"a": 1}, {"b": 2}])
    assert table.columns == ["a", "b"]
    assert list(csv.DictReader(io.StringIO(table.to_csv()))) == [{"a": "1", "b": ""}, {"a": "", "b": "2"}]


def test_csv_keeps_every_digit():
    value = 0.1 + 0.2
    assert float(next(csv.DictReader(io.StringIO(Table([{"x": value}]).to_csv())))["x"]) == value


def test_a_table_shows_itself_in_a_notebook_without_running_what_it_holds():
    shown = Table([{"name": "<script>"}])._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown


def test_an_empty_table_prints():
    assert repr(Table([])) == ""
    assert len(Table([])) == 0


def test_pictures_are_png():
    for figure in (
        learning_curves(RECORDS, "a title"),
        client_bars({"0": 0.5, "1": 1.0}, "two"),
        client_bars({str(client): client / 100 for client in range(100)}, "a hundred"),
    ):
        with Image.open(io.BytesIO(png(figure))) as picture:
            picture.load()
            assert picture.format == "PNG"
            assert min(picture.size) > 100


def test_curves_show_only_what_was_measured():
    left, right = learning_curves(RECORDS, "a title").axes
    assert [list(line.get_xdata()) for line in left.lines] == [[1, 3], [1, 3]]
    assert [list(line.get_ydata()) for line in left.lines] == [[50, 75], [25, 50]]
    assert [list(line.get_xdata()) for line in right.lines] == [[1, 2, 3]] * 2


def test_bars_mark_the_mean():
    (axes,) = client_bars({"0": 0.25, "1": 0.75}, "two").axes
    assert [bar.get_height() for bar in axes.patches] == [25, 75]
    assert list(axes.lines[0].get_ydata()) == [50, 50]
