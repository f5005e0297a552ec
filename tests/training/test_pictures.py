"""Pictures: order and alterations depend on seed and sample number alone; ranks make what they read; folders and what is
wrong with them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.mapper import OpConfig, Strategy
from taskflow.tasks.items import Placement
from taskflow.training.data import fingerprint as digest
from taskflow.training.data.background import Background
from taskflow.training.data.images.batches import ImageBatches
from taskflow.training.data.images.decode import enlarged, picture
from taskflow.training.data.images.sources import FolderImages, digits, image_folder
from taskflow.training.data.sampling import IGNORED, LabelledBatch, Sampling
from taskflow.training.program.loop import rows_read

SIZE = 16


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures of two classes for training, five for validation; of several sizes, formats and colours."""
    root = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for folder, count in (("train/cat", 5), ("train/dog", 7), ("val/cat", 2), ("val/dog", 3)):
        (root / folder / "below").mkdir(parents=True)
        for i in range(count):
            shape = (20 + 3 * i, 40 - 2 * i, *([3] if i % 3 else []))
            pixels = draw.integers(0, 256, shape, np.uint8)
            place = root / folder / ("below" if i == 1 else "")
            Image.fromarray(pixels).save(place / (f"{i}.JPEG" if i % 2 else f"{i}.png"), quality=95)
    (root / "train/cat/notes.txt").write_text("no picture")
    return root


def whole(batch: LabelledBatch) -> np.ndarray:
    part = batch.feeds["images"]
    return part[tuple(slice(0, size) for size in part.shape)]


def test_folders_are_classes(tree: Path) -> None:
    train, valid = image_folder(tree, SIZE)
    assert train.classes == valid.classes == ("cat", "dog")
    assert train.labels.tolist() == [0] * 5 + [1] * 7 and valid.labels.tolist() == [0, 0, 1, 1, 1]
    assert [Path(path).name for path in train.paths[:5]] == ["0.png", "2.png", "3.JPEG", "4.png", "1.JPEG"]
    alone, held = image_folder(tree / "train", SIZE)  # without val: a part is held out, none is lost
    assert len(held.paths) == 1 and sorted((*alone.paths, *held.paths)) == sorted(train.paths)
    assert held.paths == image_folder(tree / "train", SIZE)[1].paths


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_what_pillow_makes_of_them(tree: Path, channels: int) -> None:
    path = str(tree / "train/dog/2.png")
    found = picture(path, SIZE, channels, 0, None)
    with Image.open(path) as file:
        image = file.convert("RGB" if channels == 3 else "L")
    side = min(image.size) * 224 / 256
    box = tuple(x for edge in (-side, side) for x in (image.width / 2 + edge / 2, image.height / 2 + edge / 2))
    expected = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)).reshape(SIZE, SIZE, channels)
    assert found.dtype == np.uint8 and np.array_equal(found, expected.transpose(2, 0, 1))
    altered = [picture(path, SIZE, channels, seed, number) for seed in (0, 1) for number in range(12)]
    assert all(array.shape == found.shape for array in altered)
    assert len({array.tobytes() for array in altered}) == len(altered)
    again = picture(path, SIZE, channels, 0, 7)
    assert np.array_equal(again, altered[7])


def test_altered_pictures_lie_in_the_original_and_half_are_mirrored(tmp_path: Path) -> None:
    across = np.tile(np.linspace(0, 255, 64).astype(np.uint8), (48, 1))  # brighter to the right
    Image.fromarray(across).save(tmp_path / "ramp.png")
    rising, widths = 0, []
    for number in range(200):
        row = picture(str(tmp_path / "ramp.png"), SIZE, 1, 3, number)[0].astype(int).mean(axis=0)
        rising += row[-1] > row[0]
        widths.append(abs(row[-1] - row[0]) / 255)
    assert 70 < rising < 130
    assert min(widths) < 0.4 and max(widths) > 0.8


def test_order_does_not_depend_on_the_batch(tree: Path) -> None:
    train, _ = image_folder(tree, SIZE)
    big, small = (ImageBatches(train, batch, training=True, seed=5) for batch in (6, 4))
    together = [np.concatenate([whole(b.at(k)) for k in range(24 // b.items_per_step)]) for b in (big, small)]
    assert np.array_equal(*together)
    labels = [big.at(k).feeds["labels"] for k in range(4)]
    assert sorted(np.concatenate(labels[:2])) == sorted(np.concatenate(labels[2:])) == sorted(train.labels)
    assert [big.at(k).epoch for k in range(4)] == [0, 0, 1, 1] and len(big) == 2
    assert [big.sampling.index(0, r) for r in range(6)] != [big.sampling.index(2, r) for r in range(6)]
    other = ImageBatches(train, 6, training=True, seed=6)
    assert not np.array_equal(whole(big.at(0)), whole(other.at(0)))
    with pytest.raises(IndexError):
        big.at(-1)


def test_validation_has_every_picture_once_as_it_is(tree: Path) -> None:
    _, valid = image_folder(tree, SIZE)
    batches = ImageBatches(valid, 3, training=False, seed=1)
    labels = np.concatenate([batches.at(k).feeds["labels"] for k in range(len(batches))])
    assert sorted(labels) == sorted([*valid.labels, IGNORED])
    assert np.array_equal(whole(batches.at(1)), whole(ImageBatches(valid, 3, training=False, seed=2).at(1)))
    with pytest.raises(IndexError):
        batches.at(len(batches))


def test_values_are_normalised_by_channel(tree: Path) -> None:
    train, _ = image_folder(tree, SIZE)
    batches = ImageBatches(train, 3, training=True, dtype="float64")
    order = [batches.sampling.index(0, row) for row in range(3)]
    made = np.stack([train.job(i, 0, number)() for number, i in enumerate(order)])
    mean, std = (np.array(x)[:, None, None] for x in (train.mean, train.std))
    np.testing.assert_allclose(whole(batches.at(0)), (made / 255 - mean) / std, rtol=1e-12, atol=1e-12)
    flat = ImageBatches(train, 3, training=True, dtype="float64", name="features", flat=True).at(0).feeds["features"]
    assert flat.shape == (3, 3 * SIZE * SIZE)
    np.testing.assert_array_equal(flat[0:3, 5:700], whole(batches.at(0)).reshape(3, -1)[:, 5:700])


def test_processes_change_nothing(tree: Path) -> None:
    train, _ = image_folder(tree, SIZE)
    here = ImageBatches(train, 5, training=True)
    with_processes = ImageBatches(train, 5, training=True, background=Background(2))
    try:
        for k in (0, 1, 2, 7, 3):  # also out of order
            assert np.array_equal(whole(here.at(k)), whole(with_processes.at(k)))
    finally:
        with_processes.close()
        with_processes.close()


def test_a_rank_makes_only_what_its_pieces_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = OperatorGraph()
    images = taskflow.input(graph, (6, 3, SIZE, SIZE), name="images")
    labels = taskflow.input(graph, (6,), "int64", name="labels")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(taskflow.flatten(images, 1), 2), labels))
    configs = {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph}
    configs["images"] = OpConfig((3, 1, 2, 1), (0, 1, 2, 3, 0, 1))  # samples in three, rows of the image in two
    strategy = Strategy(4, configs)
    placement = Placement(4, 4)
    rows = [rows_read(graph, strategy, placement, rank)["images"] for rank in range(4)]
    assert rows == [(0, 1, 4, 5), (0, 1, 4, 5), (2, 3), (2, 3)]
    made: list[int] = []
    real = FolderImages.job
    monkeypatch.setattr(FolderImages, "job", lambda self, i, seed, n: (made.append(n), real(self, i, seed, n))[1])
    train, _ = image_folder(tree, SIZE)
    everything = whole(ImageBatches(train, 6, training=True).at(1))
    for rank in range(4):
        made.clear()
        batches = ImageBatches(train, 6, training=True)
        batches.restrict({"images": rows[rank]})
        part = batches.at(1).feeds["images"]
        assert made == [6 + row for row in rows[rank]]
        for rect, processor in configs["images"].pieces(graph.node("images")):
            key = tuple(slice(a, b) for a, b in zip(rect.lo, rect.hi))
            if placement.rank(processor) == rank:
                assert np.array_equal(part[key], everything[key])
            elif rect.lo[0] not in rows[rank]:
                with pytest.raises(LookupError, match="not all made on this rank"):
                    part[key]


def test_an_executor_reads_parts_of_batches(tree: Path) -> None:
    train, _ = image_folder(tree, SIZE)
    losses = []
    for lazy in (False, True):
        graph = OperatorGraph()
        images = taskflow.input(graph, (6, 3, SIZE, SIZE), name="images")
        labels = taskflow.input(graph, (6,), "int64", name="labels")
        graph.minimize(taskflow.cross_entropy(taskflow.linear(taskflow.flatten(images, 1), 2), labels))
        machine = taskflow.host(3)
        strategy, mapper = taskflow.choose("data", graph, machine)
        run = taskflow.Executor(graph, strategy, taskflow.SGD(lr=0.01), machine=machine, mapper=mapper)
        batch = ImageBatches(train, 6, training=True).at(0)
        feeds = dict(batch.feeds) if lazy else {**batch.feeds, "images": whole(batch)}
        losses.append([run.train(feeds), run.evaluate(feeds)])
    assert losses[0] == losses[1]


def test_digits_are_those_of_the_library() -> None:
    from sklearn.datasets import load_digits

    data = load_digits()
    train, valid = digits(8)
    assert len(train.labels) + len(valid.labels) == 1797
    assert np.array_equal(np.concatenate([train.labels, valid.labels]), data.target)
    pixels = np.stack([train.job(i, 0, 0)() for i in range(len(train.labels))])
    np.testing.assert_allclose(pixels[:, 0], data.images[:1500] * 255 / 16, atol=0.5)
    large = enlarged(train.pixels[0], 32, 3)
    assert large.shape == (3, 32, 32) and np.array_equal(large[0], large[2])
    blocks = large[0].reshape(8, 4, 8, 4).mean(axis=(1, 3))
    assert np.corrcoef(blocks.ravel(), train.pixels[0].ravel())[0, 1] > 0.95


@pytest.mark.parametrize("damage,message", [
    ("missing", "is no folder"), ("empty", "no pictures"), ("one", "a folder with pictures for each class, got 1"),
    ("unknown", "has classes that .* lacks: horse"),
])
def test_mistakes_in_folders_are_named(tree: Path, tmp_path: Path, damage: str, message: str) -> None:
    source = (tree / "val/cat/0.png").read_bytes()
    for name in ("cat", "dog"):
        if damage == "one" and name == "dog":
            continue
        (tmp_path / "train" / name).mkdir(parents=True)
        if damage != "empty":
            (tmp_path / "train" / name / "a.png").write_bytes(source)
    if damage == "unknown":
        (tmp_path / "val" / "horse").mkdir(parents=True)
    with pytest.raises((ValueError, OSError), match=message):
        image_folder(tmp_path / "nowhere" if damage == "missing" else tmp_path, SIZE)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_is_named(tmp_path: Path, workers: int) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    source = FolderImages((str(tmp_path / "broken.png"),), np.zeros(1, np.int64), ("a", "b"), (3, 8, 8))
    batches = ImageBatches(source, 1, training=True, background=Background(workers))
    try:
        with pytest.raises(ValueError, match=r"broken\.png: not a picture that Pillow can read"):
            batches.at(0)
    finally:
        batches.close()


def test_a_process_that_dies_is_reported() -> None:
    background = Background(1)
    try:
        with pytest.raises(RuntimeError, match="background process that makes samples has died"):
            background.start([partial(os._exit, 1)])()  # type: ignore[list-item]
    finally:
        background.close()


PARENT = """
import sys, time
from functools import partial
import numpy as np
from taskflow.training.data import fingerprint as digest
from taskflow.training.data.background import Background
if __name__ == "__main__":
    background = Background(2)
    background.start([partial(np.zeros, 1)])()
    print(*[p.pid for p in background._pool._processes.values()], flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_processes_end_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    job = subprocess.Popen([sys.executable, str(tmp_path / "parent.py")], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    started = [int(word) for word in job.stdout.readline().split()]
    assert started
    job.send_signal(signal.SIGKILL)
    job.wait()
    deadline = time.monotonic() + 100
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline, "background processes outlive their rank"
        time.sleep(0.05)


def test_sampling_refuses_what_has_no_samples() -> None:
    for count, batch in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="must be positive"):
            Sampling(count, batch, True)


def test_the_digest_sees_what_is_in_the_files(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that was replaced by another one of the same name and length makes other data; where the folder lies does not."""
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy)
    before = image_folder(tree, SIZE)[0].digest
    assert image_folder(copy, SIZE)[0].digest == before
    changed = copy / "train" / "dog" / "3.JPEG"
    content = bytearray(changed.read_bytes())
    content[-30] ^= 1
    changed.write_bytes(content)
    assert image_folder(copy, SIZE)[0].digest != before
    # Of many files some are read, always both ends.
    monkeypatch.setattr(digest, "_MOST_FILES", 3)
    names = [str(tmp_path / f"{i}") for i in range(10)]
    for name in names:
        Path(name).write_bytes(b"a")
    some = digest.digest_of_files(names)
    seen = []
    for name in names:
        Path(name).write_bytes(b"b")
        seen.append(digest.digest_of_files(names) != some)
        Path(name).write_bytes(b"a")
    assert seen == [i in (0, 4, 9) for i in range(10)]
    assert digest.digest_of_files(names[:3]) != digest.digest_of_files(names[:2])
