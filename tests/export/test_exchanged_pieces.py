"""What exported modules send among ranks: pieces a slab at a time, which is the same as gathering all and cutting it, and what
several layers read once."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
import starting

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")

from taskflow.export.pytorch.support import exchange  # noqa: E402


def among_threads(monkeypatch: pytest.MonkeyPatch, values: list[Any], gathered: int, cut: int, back: bool) -> list[Any]:
    """What each of several ranks, here threads, gets; ``back``: and exchanges back."""
    count, board = len(values), [None] * len(values)
    barrier, rank, found = threading.Barrier(count, timeout=30), threading.local(), [None] * count

    def swap(received: Any, sent: Any, group: Any) -> None:
        board[rank.number] = sent
        barrier.wait()
        received.copy_(torch.stack([one[rank.number] for one in board]))
        barrier.wait()

    def run(number: int) -> None:
        rank.number = number
        made = exchange.exchanged(values[number], None, gathered, cut)
        found[number] = exchange.exchanged(made, None, cut, gathered) if back else made

    monkeypatch.setattr(exchange.dist, "all_to_all_single", swap)
    monkeypatch.setattr(exchange.dist, "get_world_size", lambda group: count)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("seed", range(8))
def test_pieces_along_another_axis_are_those_of_the_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    count = random.choice([2, 3, 4])
    gathered, cut = random.sample(range(3), 2)
    sizes = [random.randint(1, 4) for _ in range(3)]
    sizes[cut] *= count
    values = [torch.randn(sizes, generator=torch.Generator().manual_seed(10 * seed + rank)) for rank in range(count)]
    if seed % 2:  # as gradients come
        values = [value.transpose(0, 2).contiguous().transpose(0, 2) for value in values]
    monkeypatch.setattr(exchange, "SLAB", random.choice([1, values[0].nbytes // 2, values[0].nbytes]))
    wanted = torch.cat(values, gathered).chunk(count, cut)
    for one, other in zip(among_threads(monkeypatch, values, gathered, cut, False), wanted):
        assert torch.equal(one, other)
    for one, other in zip(among_threads(monkeypatch, values, gathered, cut, True), values):
        assert torch.equal(one, other)


def test_other_layouts_hold_what_dtensors_own_way_brings_there(tmp_path: Path) -> None:
    done = starting.run_torch(4, str(Path(__file__).with_name("place_pieces.py")), str(tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    for path in tmp_path.glob("rank*.json"):
        found = json.loads(path.read_text())
        assert all(found["right"]) and len(found["right"]) == 123 and found["by_one_message"] > 40


@pytest.mark.timeout(200)
def test_functions_of_code_between_layers_are_right_whichever_way_their_arguments_are_cut(tmp_path: Path) -> None:
    """DTensor alone pads each piece of a filter's input, and loses gradients of what indices take, in some layouts."""
    done = starting.run_torch(2, str(Path(__file__).with_name("call_on_pieces.py")), str(tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    for path in tmp_path.glob("rank*.json"):
        found = json.loads(path.read_text())
        assert len(found) > 150 and not [case for case, off in found.items() if not off < 1e-4]


def test_an_exchange_holds_a_slab_beside_what_it_is_given_and_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        made: tuple[int, ...] = ()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor) and not found._is_view():
                self.made += (found.untyped_storage().nbytes(),)
            return found

    monkeypatch.setattr(exchange.dist, "all_to_all_single", lambda received, sent, group: received.copy_(sent))
    monkeypatch.setattr(exchange.dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(exchange, "SLAB", 1 << 10)
    value = torch.randn(4, 64, 32)
    with Largest() as largest:
        exchange.exchanged(value, None, 2, 1)
    assert sorted(set(largest.made))[-1] == value.nbytes and sorted(set(largest.made))[-2] <= 1 << 10


@pytest.fixture
def two_ranks() -> Any:
    """A mesh of two ranks that send nothing."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def test_batch_normalisation_beside_cut_layers_takes_the_samples_of_all_replicas(
    two_ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas, of which the other has other samples."""
    from torch import nn
    from torch.distributed.tensor import Replicate

    from taskflow.export.pytorch.support import layers, statistics
    from taskflow.export.pytorch.support.plan import LayerPlan

    generator = torch.Generator().manual_seed(0)
    here, there = (torch.randn(4, 3, 2, 2, generator=generator) for _ in range(2))
    alone, module = nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3))
    wanted = alone(torch.cat([here, there]))[:4]

    def gather(every: Any, own: Any, group: Any) -> None:
        every[:2], every[2:] = own, torch.stack((there.mean((0, 2, 3)), there.var((0, 2, 3), correction=0)))  # the other's rows

    monkeypatch.setattr(statistics, "gather", gather)
    statistics.share_statistics(module, two_ranks.get_group())
    layers.cut_layers(module, {"0": LayerPlan(((Replicate(),),), {}, (Replicate(),), (Replicate(),))}, two_ranks, {})
    assert torch.allclose(module(here).to_local(), wanted, atol=1e-6)
    assert torch.allclose(module[0].running_var, alone.running_var) and module[0].num_batches_tracked == 1
    module.eval()
    assert torch.allclose(module(here).to_local(), alone.eval()(here), atol=1e-6)


def test_what_several_layers_read_is_brought_to_them_once(two_ranks: Any) -> None:
    """Unless it has changed since, or was brought there without gradients."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    from taskflow.export.pytorch.support.layers import _given

    whole, rows = (Replicate(),), (Shard(0),)
    value = DTensor.from_local(torch.zeros(3, 4, requires_grad=True), two_ranks, rows, run_check=False) * 1
    first = _given(value, two_ranks, whole)
    assert _given(value, two_ranks, whole) is first and first.shape == (6, 4) and first.requires_grad
    assert _given(value, two_ranks, rows) is value
    with torch.no_grad():
        assert not _given(value, two_ranks, whole).requires_grad
    assert _given(value, two_ranks, whole).requires_grad
    value.add_(1)
    again = _given(value, two_ranks, whole)
    assert again is not first and again is _given(value, two_ranks, whole)


@pytest.mark.parametrize("padding", [None, 1, 5])
def test_a_table_in_pieces_is_looked_up_as_the_whole_and_its_padding_does_not_learn(padding: int | None) -> None:
    from types import SimpleNamespace

    from torch.distributed.tensor import Shard

    from taskflow.export.pytorch.support.layers import _look_up

    whole = torch.nn.Embedding(8, 3, padding_idx=padding)
    words = torch.tensor([[0, 1, 5], [7, 5, 2]])
    whole(words).square().sum().backward()
    pieces = [half.clone().requires_grad_() for half in whole.weight.detach().chunk(2)]
    meshes = [SimpleNamespace(shape=(2,), get_coordinate=lambda rank=rank: [rank]) for rank in range(2)]
    made: Any = sum(_look_up(words, piece, (Shard(0),), mesh, padding) for piece, mesh in zip(pieces, meshes))  # type: ignore[arg-type]
    assert torch.equal(made, whole(words))
    made.square().sum().backward()
    assert torch.equal(torch.cat([piece.grad for piece in pieces]), whole.weight.grad)


def test_what_is_broadcast_with_queries_is_cut_where_it_has_more_than_one_element() -> None:
    from torch.distributed.tensor import Replicate, Shard

    from taskflow.export.pytorch.support.layers import _alike

    queries = (Shard(0), Shard(1))
    for shape, wanted in (
        ((8, 4, 16, 16), queries), ((8, 1, 16, 16), (Shard(0), Replicate())), ((1, 4, 16, 16), (Replicate(), Shard(1))),
        ((4, 16, 16), (Replicate(), Shard(0))), ((16, 16), (Replicate(), Replicate())),
    ):
        assert _alike(torch.zeros(shape), 4, queries) == wanted


RESHAPES = [
    ((4, 6, 8), "view", (24, 8)), ((4, 6, 8), "view", (-1, 8)), ((4, 6, 8), "reshape", ((4, 6, 2, 4),)),
    ((4, 6, 8), "reshape", (4, -1)), ((4, 6, 8), "flatten", (0, 1)), ((4, 6, 8), "flatten", (1,)), ((4, 6, 8), "flatten", ()),
    ((1, 6, 8), "view", (6, 8)), ((4, 6, 8), "view", (2, 2, 6, 8)),
]  # fmt: skip


@pytest.mark.parametrize("shape,name,sizes", RESHAPES)
@pytest.mark.parametrize("axis", range(3))
def test_what_joins_a_cut_dimension_with_those_before_it_is_given_the_whole(
    shape: tuple[int, ...], name: str, sizes: tuple[Any, ...], axis: int, two_ranks: Any
) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    from taskflow.export.pytorch.support.layers import OnPieces, divided

    whole = torch.empty(shape, device="meta")
    wanted = getattr(whole, name)(*sizes).shape
    assert list(wanted) == OnPieces.JOINING[getattr(torch.Tensor, name)](shape, *sizes)
    before = torch.Size(shape[:axis]).numel()
    joins = all(torch.Size(wanted[:k]).numel() != before for k in range(len(wanted) + 1))
    if shape[axis] == 1 or (not joins and axis == 0 and wanted[0] % 2):
        return  # nothing to cut
    local = torch.zeros([size // 2 if i == axis else size for i, size in enumerate(shape)], requires_grad=True)
    with divided():
        made = getattr(DTensor.from_local(local, two_ranks, (Shard(axis),), run_check=False), name)(*sizes)
    assert made.shape == wanted and (made.placements == (Replicate(),)) is joins
    assert all(type(p) in (Shard, Replicate) for p in made.placements)
    made.sum().backward()
    assert local.grad is not None and local.grad.shape == local.shape


def test_the_second_of_two_arrays_is_cut_like_the_first(two_ranks: Any) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    from taskflow.export.pytorch.support.layers import _cut_like

    def lying(placement: Any) -> Any:
        local = torch.zeros([4 // 2 if isinstance(placement, Shard) and placement.dim == axis else 4 for axis in range(2)])
        return DTensor.from_local(local, two_ranks, (placement,), run_check=False)

    assert _cut_like(lying(Shard(0)), lying(Shard(1))).placements == (Shard(0),)
    for first, second in ((Shard(0), Replicate()), (Shard(0), Partial()), (Partial(), Shard(0)), (Shard(1), Shard(1))):
        value = lying(second)
        assert _cut_like(lying(first), value) is value, "DTensor's own rules cut or add it without a message, or as they must"
