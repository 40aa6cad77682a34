from tmmu.client.value_counts import ValueCounts


def test_a_look_counts_by_the_rule_of_the_sources() -> None:
    counts = ValueCounts()
    for value_bytes, moved_bytes in ((1 << 20, 10485), (1 << 20, 10486), ((1 << 20) - 1, 8)):
        counts.note(value_bytes, moved_bytes, is_local=False)
    counts.note(10, 10, is_local=True)
    assert counts == ValueCounts(
        looks=4, local=1, value_bytes=3 * (1 << 20) + 9, moved_bytes=10485 + 10486 + 8 + 10, by_rule=1
    )
