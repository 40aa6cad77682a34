from tmmu.cache.table import LruTable


def test_table_drops_the_least_recently_used() -> None:
    table: LruTable[str] = LruTable(max_rows=2, max_cost=100)
    table.put(b"a", "A", 1)
    table.put(b"b", "B", 1)
    assert table.get(b"a") == "A"
    table.put(b"c", "C", 1)
    assert (table.get(b"a"), table.get(b"b"), table.get(b"c")) == ("A", None, "C")


def test_table_bounds_the_sum_of_costs() -> None:
    table: LruTable[str] = LruTable(max_rows=10, max_cost=10)
    for name, cost in ((b"a", 4), (b"b", 4), (b"c", 4)):
        table.put(name, name.decode(), cost)
    assert len(table) == 2
    assert table.get(b"a") is None


def test_item_larger_than_the_table_is_not_put() -> None:
    table: LruTable[str] = LruTable(max_rows=10, max_cost=10)
    table.put(b"a", "A", 10)
    table.put(b"b", "B", 11)
    assert (table.get(b"a"), table.get(b"b")) == ("A", None)


def test_replaced_item_costs_once() -> None:
    table: LruTable[str] = LruTable(max_rows=10, max_cost=10)
    for text in ("one", "two", "three"):
        table.put(b"a", text, 6)
    table.put(b"b", "B", 4)
    assert (table.get(b"a"), table.get(b"b")) == ("three", "B")


def test_item_replaced_by_one_that_does_not_fit_is_dropped() -> None:
    table: LruTable[str] = LruTable(max_rows=10, max_cost=10)
    table.put(b"a", "old", 1)
    table.put(b"a", "new", 11)
    assert table.get(b"a") is None
    table.put(b"b", "B", 10)
    assert table.get(b"b") == "B"
