"""Memory for payloads: who comes first has it first, and no client has all of it."""

from tmmu.server.wire.receive_memory import ReceiveMemory


def test_requests_have_memory_in_the_order_in_which_they_came() -> None:
    memory, begun = ReceiveMemory(100), list[str]()
    for name, size in (("a", 60), ("b", 50), ("c", 10)):
        memory.reserve(name, name, size, lambda name=name: begun.append(name))  # type: ignore[misc]
    assert (begun, memory.used, memory.waiting) == (["a"], 60, 2), "c is behind b, which has no room yet"
    memory.release("a")
    assert (begun, memory.used, memory.waiting) == (["a", "b", "c"], 60, 0)
    for name in ("b", "c", "nobody"):
        memory.release(name)
    assert memory.used == 0


def test_a_client_that_holds_its_half_holds_up_nobody_else() -> None:
    memory, begun = ReceiveMemory(100), list[int]()
    for number in range(4):
        memory.reserve(number, "slow", 25, lambda number=number: begun.append(number))  # type: ignore[misc]
    memory.reserve(4, "other", 50, lambda: begun.append(4))
    assert (begun, memory.used, memory.waiting) == ([0, 1, 4], 100, 2)
    memory.release(4)
    assert begun == [0, 1, 4], "a client has no more because others have less"
    memory.release(0)
    assert (begun, memory.used) == ([0, 1, 4, 2], 50)


def test_one_message_may_be_larger_than_a_half() -> None:
    memory, begun = ReceiveMemory(100), list[int]()
    memory.reserve(0, "one", 90, lambda: begun.append(0))
    memory.reserve(1, "one", 5, lambda: begun.append(1))
    assert begun == [0]
    memory.release(0)
    assert begun == [0, 1]
