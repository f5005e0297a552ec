"""Products from a device's figures: caches, terms of tiles, libraries that choose tiles by rows, and bringing into 8 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskflow.machine import Device, ProductRates, load_machine
from taskflow.optimizer.cost.products import BETWEEN, MOST_TILE, PARTLY, most_reached, product_seconds

PLAIN = ProductRates(0.0, 1.0, 0.0, 0.0, 1.0, 1e3, 0.8, 2.0)  # one part, since adding parts takes an hour
MEASURED = [(name, dtype) for name in ("a100", "h100", "h200", "b200", "gb200", "l40s") for dtype in ("bfloat16", "float8")
            if load_machine(name, 1).kinds[0].products_of(dtype) is not None]  # fmt: skip


def device(**changes: object) -> Device:
    return replace(load_machine("l40s", 1).kinds[0], **changes)  # type: ignore[arg-type]


def seconds(rates: ProductRates, m: int, n: int, k: int, of: Device | None = None, size: int = 2) -> float:
    of = of or device()
    return product_seconds(of, rates, of.rate("bfloat16"), size, m, n, k, 1)


def test_factors_come_from_the_cache_if_those_of_six_products_fit() -> None:
    """Of one row: all that counts is the right factor, k x n numbers of two bytes."""
    of = device()
    rate = of.memory_bytes_per_second
    for part, reached in ((1 - 2 * PARTLY, 2.0), (1 + 2 * PARTLY, 0.8)):
        n = 4096
        k = int(part * of.cache_bytes / BETWEEN / 2 / n)
        nbytes = 2 * (k + k * n + n)
        assert seconds(PLAIN, 1, n, k) == pytest.approx(nbytes / reached / rate)
    few = [seconds(PLAIN, 1, 4096, k) for k in range(1024, 4096, 64)]
    assert few == sorted(few)


def test_results_need_their_place_in_the_cache_once() -> None:
    """Thirty-two terms: results of half of the cache stay there, of twice as much they do not."""
    of = device()
    n = 8192
    for part, reached in ((0.5, 2.0), (2.0, 0.8)):
        m = int(part * of.cache_bytes / 2 / n)
        nbytes = 2 * (32 * m + 32 * n + m * n)
        assert seconds(PLAIN, m, n, 32) == pytest.approx(nbytes / reached / of.memory_bytes_per_second, rel=0.01)


def test_a_term_takes_some_time_however_small_the_tile() -> None:
    slow = replace(PLAIN, term_seconds=1e-9)
    assert seconds(slow, 16, 16, 4096) == pytest.approx(4096e-9)
    assert seconds(slow, 16, 16, 8192) == pytest.approx(8192e-9)
    assert seconds(slow, 8192, 8192, 4096) == pytest.approx(seconds(PLAIN, 8192, 8192, 4096))  # tiles as long as that anyway


@pytest.mark.parametrize(("m", "tile"), [(32, 1024), (64, 2048), (65, 4096), (256, 8192), (512, MOST_TILE), (513, MOST_TILE)])
def test_libraries_may_choose_tiles_by_rows_alone(m: int, tile: int) -> None:
    """Of 16 columns, which a small tile would hold, such a library computes a large one."""
    of = device(memory_bytes_per_second=1e15)
    by_rows = replace(PLAIN, by_rows=32)
    rows = max(1, -(-m // 256))
    each = 2 * tile * 65_536 * of.multiprocessors / of.rate("bfloat16")
    assert each <= seconds(by_rows, m, 16, 65_536, of) <= (1 + rows) * each
    assert seconds(PLAIN, m, 16, 65_536, of) < each


def test_bringing_into_eight_bits_reads_from_where_the_factor_is() -> None:
    of = device()
    casting = replace(PLAIN, cast=3.0)
    for m, reached in ((256, 2.0), (65_536, 0.8)):
        more = seconds(casting, m, 64, 8192, size=1) - seconds(PLAIN, m, 64, 8192, size=1)
        assert more == pytest.approx(3.0 * m * 8192 / reached / of.memory_bytes_per_second)


@pytest.mark.parametrize(("name", "dtype"), MEASURED)
def test_no_product_exceeds_what_is_most_reached(name: str, dtype: str) -> None:
    """Which bounds rely on."""
    of = load_machine(name, 1).kinds[0]
    rates = of.products_of(dtype)
    assert rates is not None and 0.4 < most_reached(rates) <= 1
    peak = of.rate(dtype)
    for m in (256, 4096, 32_768):
        took = product_seconds(of, rates, peak, 1 if dtype == "float8" else 2, m, 8192, 8192, 1)
        assert 2 * m * 8192 * 8192 / took < peak * most_reached(rates)
