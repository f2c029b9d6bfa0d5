"""Measured tables: numbers come as numbers, and a wrong name is answered with the right ones."""

import pytest

from transformer_book import results


def test_cells_are_whole_numbers_numbers_or_words():
    rows = results.table("recall")
    assert {type(row["seed"]) for row in rows} == {int}
    assert {type(row["accuracy"]) for row in rows} == {float}
    assert {type(row["steps_to_99"]) for row in rows} == {int, str}  # empty if it never got there
    assert {"rnn", "gru", "lstm", "transformer", "bag"} < {row["model"] for row in rows}


def test_a_table_other_than_the_results():
    assert {"layer", "head", "loss"} <= set(results.table("heads", "single.csv")[0])


def test_an_unknown_experiment_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=r"experiment='recal'.*'recall'"):
        results.table("recal")


def test_an_unknown_table_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=r"filename='one\.csv'.*'greedy\.csv'.*'single\.csv'"):
        results.table("heads", "one.csv")


def test_without_the_results_the_error_says_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    with pytest.raises(FileNotFoundError, match=r"in book/results of the book's repository; run"):
        results.table("recall")
