"""Every kind of message between the ranks of an MPITransport, checked by what arrives. Rank 0 says "all right"."""

import sys

import numpy as np

from taskflow.floats import float_type
from taskflow.kernels import HOST
from taskflow.operators.sixteen_bit import add_up
from taskflow.runtime.connecting import connect
from taskflow.runtime.job.polling import Backoff
from taskflow.runtime.transport.mpi import MPITransport

SIZES = [0, 1, 7, 8, 100, 1023, 1024, 4096, 65_536, 65_537, 300_000, 1 << 20, (1 << 22) + 3]


def refused(kind, call, *arguments):
    """The message of the error of type ``kind`` that the call must raise."""
    try:
        call(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} accepted {arguments}")


def pattern(nbytes, seed):
    return np.random.default_rng([nbytes, seed]).integers(0, 256, nbytes, np.uint8)


def ping_pong(transport):
    """Ranks 0 and 1, every size: 1 gets what 0 sent and sends it back with one added."""
    if transport.rank > 1:
        return
    other = 1 - transport.rank
    for nbytes in SIZES:
        buffer = np.zeros(nbytes, np.uint8)
        send, receive = transport.sender(buffer, other, 3), transport.receiver(buffer, other, 3)
        assert send.done() and receive.done() and send.nbytes == nbytes and send.peer == other
        if transport.rank == 0:
            buffer[:] = pattern(nbytes, 1)
            send.start()
            transport.wait(send, "ping")
            buffer[:] = 0
        receive.start()
        transport.wait(receive, lambda: "the other's turn")
        expected = pattern(nbytes, 1) + np.uint8(transport.rank == 0)
        assert (buffer == expected).all(), f"{nbytes} bytes arrived wrong"
        if transport.rank == 1:
            buffer += np.uint8(1)
            send.start()
            transport.wait(send, "pong")


def replay(transport, steps=100):
    """A ring of persistent messages, started in every step: rank r's number of step s reaches r + 1 in step s."""
    rank, size = transport.rank, transport.size
    mine, theirs = np.zeros((2, 3)), np.zeros((2, 3))
    send = transport.sender(mine, (rank + 1) % size, 11)
    receive = transport.receiver(theirs, (rank - 1) % size, 11)
    before = transport.bytes_sent, transport.bytes_received, transport.messages
    for step in range(steps):
        mine[:] = 1000 * rank + step
        receive.start()
        send.start()
        transport.wait(receive, "ring")
        transport.wait(send, "ring")
        assert (theirs == 1000 * ((rank - 1) % size) + step).all()
    after = transport.bytes_sent, transport.bytes_received, transport.messages
    assert [b - a for a, b in zip(before, after)] == [48 * steps, 48 * steps, steps]


def tags(transport):
    """Messages to one peer are told apart by tag, whatever order they are started in; any shape and type goes."""
    rank, size = transport.rank, transport.size
    arrays = [np.full((), rank, np.int64), np.full((3, 1, 5), rank + 0.5, np.float32), np.array([rank > 0])]
    got = [np.empty_like(array) for array in arrays]
    sends = [transport.sender(array, (rank + 1) % size, tag) for tag, array in enumerate(arrays)]
    receives = [transport.receiver(array, (rank - 1) % size, tag) for tag, array in enumerate(got)]
    for channel in [*receives, *reversed(sends)]:
        channel.start()
    for channel in [*sends, *receives]:
        transport.wait(channel, "tags")
    left = (rank - 1) % size
    assert got[0] == left and (got[1] == left + np.float32(0.5)).all() and got[2][0] == (left > 0)


def values(transport):
    rank, size = transport.rank, transport.size
    for root in range(size):
        for value in (3.25, None, {"loss": [1, 2]}, "x" * 990, "x" * 1016, "x" * 5000, b"y" * 300_000):
            assert transport.broadcast(value if rank == root else "no", root) == value
        gathered = transport.gather((rank, "z" * (700 * rank)), root)
        assert gathered == ([(r, "z" * (700 * r)) for r in range(size)] if rank == root else None)
    transport.barrier()


def errors(transport):
    rank, size = transport.rank, transport.size
    other, array = (rank + 1) % size, np.zeros((4, 4))
    assert "C-contiguous" in refused(ValueError, transport.sender, array.T[1:], other, 0)
    assert f"below {size}" in refused(ValueError, transport.sender, array, size, 0)
    assert "another rank" in refused(ValueError, transport.receiver, array, rank, 0)
    assert "tags from 0" in refused(ValueError, transport.sender, array, other, -1)
    assert "tags from 0" in refused(ValueError, transport.sender, array, other, 1 << 40)
    for ranks in ([transport.rank], [1, 0], [0, size], [0, 0]):
        assert "two or more of 0 to" in refused(ValueError, transport.all_reduce, np.zeros(3), ranks)
    for counted in (transport.reduce_scatter, transport.all_gather):
        assert "two or more of 0 to" in refused(ValueError, counted, np.zeros(3), [3], [transport.rank])
    assert "floating type" in refused(ValueError, transport.all_reduce, np.zeros(3, int), range(size))
    assert "C-contiguous" in refused(ValueError, transport.all_reduce, np.zeros((4, 4))[:, 1], range(size))
    array.flags.writeable = False
    assert "writable" in refused(ValueError, transport.receiver, array, other, 0)
    assert "root" in refused(ValueError, transport.broadcast, 1, size)
    receive = transport.receiver(np.zeros(1), other, 99)
    receive.start()
    assert not receive.done()
    assert "tag 99" in refused(RuntimeError, receive.start)
    transport.close()  # with that receive still open
    transport.close()
    assert "closed" in refused(RuntimeError, transport.sender, np.zeros(1), other, 0)
    assert "closed" in refused(RuntimeError, transport.barrier)
    assert "message_nbytes" in refused(ValueError, MPITransport, None, None, 0)
    assert "watchdog" in refused(ValueError, MPITransport, -1)


def all_reduces(transport, steps=10):
    """Sums of all ranks and of pairs of them, several on their way at once, of every size."""
    rank, size = transport.rank, transport.size
    groups = list(dict.fromkeys([tuple(range(size)), *((one, one + 1) for one in range(size - 1)), (0, size - 1)]))
    for kind in (np.float32, np.float64):
        for length in (0, 1, 3, 1000, 70_001):
            mine = [(ranks, np.zeros(length, kind)) for ranks in groups if rank in ranks]
            channels = [transport.all_reduce(array, ranks) for ranks, array in mine]  # in one order on all
            for channel, (ranks, array) in zip(channels, mine):
                assert channel.nbytes == array.nbytes and channel.peers == tuple(r for r in ranks if r != rank)
            before = transport.bytes_sent, transport.bytes_received
            for step in range(steps if length < 1000 else 3):
                for channel, (ranks, array) in zip(channels, mine):
                    array[:] = (rank + 1) * (step + 1 + groups.index(ranks))
                    channel.start()
                for channel, (ranks, array) in zip(channels, mine):
                    transport.wait(channel, "sum")
                    assert (array == (step + 1 + groups.index(ranks)) * sum(r + 1 for r in ranks)).all()
            after = transport.bytes_sent, transport.bytes_received
            assert after[0] - before[0] == after[1] - before[1] >= 0
    # The same bits on every rank, whatever the library does.
    array = np.random.default_rng(rank).standard_normal(100_003).astype(np.float32)
    wanted = sum(np.random.default_rng(r).standard_normal(100_003).astype(np.float32).astype(np.float64) for r in range(size))
    channel = transport.all_reduce(array, range(size))
    channel.start()
    transport.wait(channel, "bits")
    assert np.allclose(array, wanted, rtol=1e-4, atol=1e-5)
    found = transport.gather(array.tobytes())
    assert found is None or len(set(found)) == 1


def shares(transport, steps=6):
    """Reduce-scatters and all-gathers of all ranks and of pairs, several on their way at once: uneven shares, empty ones, and all
    in the hands of one rank."""
    rank, size = transport.rank, transport.size
    groups = list(dict.fromkeys([tuple(range(size)), *((one, one + 1) for one in range(size - 1)), (0, size - 1)]))

    def parts(ranks, length, way):
        many = len(ranks)
        if way == "last":
            return [0] * (many - 1) + [length]
        if way == "growing":
            return [length * (k + 1) // many - length * k // many for k in range(many)]
        return [length // many + (k < length % many) for k in range(many)]

    for kind, length, way in (
        (np.float32, 1000, "even"), (np.float64, 1003, "even"), (np.float64, 2, "even"), (np.float32, 0, "even"),
        (np.float64, 70_001, "growing"), (np.float32, 777, "last"),
    ):
        mine = [(ranks, parts(ranks, length, way), np.zeros(length, kind)) for ranks in groups if rank in ranks]
        scatters = [transport.reduce_scatter(array, counts, ranks) for ranks, counts, array in mine]
        gathers = [transport.all_gather(array, counts, ranks) for ranks, counts, array in mine]
        before = transport.bytes_sent, transport.bytes_received, transport.messages
        for step in range(steps if length < 10_000 else 3):
            for scatter, (ranks, _, array) in zip(scatters, mine):
                array[:] = (rank + 1) * (step + 1 + groups.index(ranks) + np.arange(length) % 5)
                scatter.start()
            for scatter, (ranks, counts, array) in zip(scatters, mine):
                transport.wait(scatter, "scatter")
                low = sum(counts[: ranks.index(rank)])
                own = array[low : low + counts[ranks.index(rank)]].copy()
                wanted = sum(r + 1 for r in ranks) * (step + 1 + groups.index(ranks) + np.arange(length) % 5)
                assert (own == wanted[low : low + len(own)]).all(), (ranks, way, kind)
                array[:] = -1
                array[low : low + len(own)] = own
            for gather in gathers:
                gather.start()
            for gather, (ranks, _, array) in zip(gathers, mine):
                transport.wait(gather, "gather")
                wanted = sum(r + 1 for r in ranks) * (step + 1 + groups.index(ranks) + np.arange(length) % 5)
                assert (array == wanted).all(), (ranks, way, kind)
        sent, received, messages = transport.bytes_sent - before[0], transport.bytes_received - before[1], transport.messages
        assert sent == received and messages - before[2] == (steps if length < 10_000 else 3) * 2 * len(mine)
        everybody = transport.gather(sent)
        if everybody is not None:
            wanted = sum(2 * (len(ranks) - 1) * length * np.dtype(kind).itemsize for ranks in groups)
            assert sum(everybody) == (steps if length < 10_000 else 3) * wanted
    channel = scatters[0]
    assert channel.peers == tuple(other for other in range(size) if other != rank) and "a share for each" in str(channel)
    for ask in (transport.reduce_scatter, transport.all_gather):
        for counts in ([1] * size, [2, *[0] * size], [4, -1, *[0] * (size - 2)]):
            assert "a count of each rank's elements" in refused(ValueError, ask, np.zeros(3 + size), counts, range(size))
    assert "floating type" in refused(ValueError, transport.reduce_scatter, np.zeros(size, int), [1] * size, range(size))


def sixteen_bit_sums(transport, steps=3):
    """Sums of 16-bit floats have the bits of one process, however many are on their way, in whatever order ranks wait for them; as
    many bytes travel as in a ring."""
    rank, size = transport.rank, transport.size
    groups = list(dict.fromkeys([tuple(range(size)), *((one, one + 1) for one in range(size - 1)), (0, size - 1)]))

    def numbers(kind, length, of, step, group):
        return (np.random.default_rng((length, of, step, group)).standard_normal(length) * 10.0 ** (of % 3)).astype(kind)

    for kind in (float_type("bfloat16"), np.dtype(np.float16)):
        for length, way in ((0, "even"), (1, "even"), (1003, "even"), (3001, "growing"), (700, "last")):
            mine = []
            for number, ranks in ((n, ranks) for n, ranks in enumerate(groups) if rank in ranks):
                many, arrays = len(ranks), [np.zeros(length, kind) for _ in range(2)]
                counts = [length * (k + 1) // many - length * k // many for k in range(many)]
                if way == "growing":
                    counts = [0, *counts[1:-1], counts[-1] + counts[0]] if many > 2 else [length // 3, length - length // 3]
                if way == "last":
                    counts = [0] * (many - 1) + [length]
                cuts = list(np.cumsum([0, *counts]))
                place = ranks.index(rank)
                own = slice(cuts[place], cuts[place + 1])
                mine.append((number, ranks, arrays[0], slice(None), transport.all_reduce(arrays[0], ranks)))
                mine.append((number, ranks, arrays[1], own, transport.reduce_scatter(arrays[1], counts, ranks)))
            before = transport.bytes_sent, transport.bytes_received
            for step in range(steps):
                for number, _, array, _, channel in mine:
                    array[:] = numbers(kind, length, rank, step, number)
                    channel.start()
                for number, ranks, array, here, channel in mine if rank % 2 else reversed(mine):
                    transport.wait(channel, "a sum of 16-bit floats")
                    wanted = np.zeros(length, kind)
                    add_up(HOST, wanted, [numbers(kind, length, of, step, number) for of in ranks], fresh=True)
                    assert array[here].tobytes() == wanted[here].tobytes(), (kind, length, way, ranks)
            sent, received = transport.bytes_sent - before[0], transport.bytes_received - before[1]
            everybody = transport.gather((sent, received))
            if everybody is not None:
                wanted = steps * sum(3 * (len(ranks) - 1) * length * 2 for ranks in groups)
                assert sum(s for s, _ in everybody) == sum(r for _, r in everybody) == wanted
    channel = mine[1][-1]
    channel.start()
    assert transport.gather(0) is None or not rank  # a rank that waits for something else goes on with its sums
    transport.wait(channel, "the last sum")
    assert "a share for each" in str(channel)
    assert "C-contiguous" in refused(ValueError, transport.all_reduce, np.zeros((4, 4), kind)[:, 1], range(size))


def exchanges(transport, steps=6):
    """All-to-alls of all ranks and of two of them, of any types and sizes, also nothing, several on their way at once."""
    rank, size = transport.rank, transport.size
    groups = list(dict.fromkeys([tuple(range(size)), (0, size - 1)]))
    for kind, most in ((np.float32, 40), (np.int64, 3000), (np.float64, 1), (np.bool_, 7)):
        mine = []
        for ranks in (ranks for ranks in groups if rank in ranks):
            random, count = np.random.default_rng(most), len(ranks)
            counts = [[int(random.integers(0, most + 1)) if a != b else 0 for b in range(count)] for a in range(count)]
            place = ranks.index(rank)
            given, got = sum(counts[place]), sum(row[place] for row in counts)
            array = np.zeros(given + got, kind)
            mine.append((ranks, counts, place, given, array, transport.all_to_all(array, counts, ranks)))
        before = transport.bytes_sent, transport.bytes_received
        for step in range(steps):
            for ranks, counts, place, given, array, channel in mine:
                array[:given] = np.concatenate(
                    [(np.arange(n) + 7 * rank + other + step) % 5 for n, other in zip(counts[place], ranks)]
                ).astype(kind)
                array[given:] = 0
                channel.start()
            for ranks, counts, place, given, array, channel in mine:
                transport.wait(channel, "exchange")
                wanted = [(np.arange(row[place]) + 7 * other + rank + step) % 5 for row, other in zip(counts, ranks)]
                assert (array[given:] == np.concatenate(wanted).astype(kind)).all(), (ranks, kind)
        sent, received = transport.bytes_sent - before[0], transport.bytes_received - before[1]
        assert sent == steps * sum(m[3] for m in mine) * np.dtype(kind).itemsize
        assert received == steps * sum(len(m[4]) - m[3] for m in mine) * np.dtype(kind).itemsize
    for counts in ([[0] * size] * (size - 1), [[1] * size] * size, [[-1] * size] * size):
        assert "how many elements, 0 or more" in refused(ValueError, transport.all_to_all, np.zeros(3), counts, range(size))
    assert "exchange" in str(mine[0][-1])


def main():
    first = connect()
    assert isinstance(first, MPITransport) and first.size == int(sys.argv[1])
    # Another transport beside the first, with messages of at most 1000 bytes and hardly any patience.
    second = MPITransport(message_nbytes=1000, pace=Backoff(0.0, 1e-6, 1e-4))
    for transport in (first, second):
        ping_pong(transport)
        replay(transport)
        tags(transport)
        values(transport)
        all_reduces(transport)
        shares(transport)
        sixteen_bit_sums(transport)
        exchanges(transport)
    assert first.bytes_sent == second.bytes_sent
    errors(first)
    second.barrier()
    second.close()
    if second.rank == 0:
        print("all right")


main()
