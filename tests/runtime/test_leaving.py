"""The sends that a span meets, against a look at all of them."""

from random import Random

import pytest

from taskflow.runtime.program.schedule import ByteRange, PendingSends


def span(random: Random) -> ByteRange:
    low = random.randrange(60)
    return ByteRange(random.choice((-1, -1, 3, 7)), low, low + random.choice((0, 1, 5, 20)))


@pytest.mark.parametrize("seed", range(60))
def test_meeting_is_what_a_scan_finds(seed: int) -> None:
    random = Random(seed)
    spans = [span(random) for _ in range(random.randint(1, 40))]
    leaving, begun, met = PendingSends(spans), [], 0
    for _ in range(200):
        if random.random() < 0.6:
            send = random.randrange(len(spans))
            assert (send in leaving) == (send in begun)
            leaving.begin(send)
            if send not in begun:
                begun.append(send)
        else:
            asked = span(random)
            wanted = [send for send in begun if spans[send].meets(asked)]
            assert leaving.meeting(asked) == wanted
            begun = [send for send in begun if send not in wanted]
            met += len(wanted)
    assert met > 5
