from __future__ import annotations


def test_sharing_divides_the_parameters_of_the_blocks(run_experiment):
    page, found = run_experiment("sharing", layers=4, dim=16, narrow=8, steps=1)
    rows = {(row[0], row[1]): row for row in page.tables[0].rows}
    names = {"1": "one block for all", "2": "2 blocks", "4": "nothing"}
    inside = {count: int(rows[name, "8"][3].replace(",", "")) for count, name in names.items()}
    assert inside["4"] == 2 * inside["2"] == 4 * inside["1"]
    assert found["parameters 1 8"] < found["parameters 1 16"] < found["parameters 4 16"]
    one, four = (found[f"parameters {count} 16"] for count in (1, 4))
    parts = found["parameters attention 16"], found["parameters feed-forward 16"]
    assert one < min(parts) < max(parts) < four
    assert found["loss 1 8"] != found["loss 4 8"]
