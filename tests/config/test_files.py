"""Whatever is read is read once, no further than a stated size, as UTF-8 with or without a byte-order mark."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from clustersim import files
from clustersim.collectives.nccl.nccl_tests_log import measured
from clustersim.convert import hugging_face
from clustersim.errors import DataError, InputError
from clustersim.lab.data import frames, own_measurements
from clustersim.predictors import weights_file
from clustersim.topology.build import load

READERS = {
    "text": files.read_text,
    "config.json": hugging_face.read,
    "nccl-tests": lambda path: measured(path, "all_reduce", 8),
    "sheet": lambda path: own_measurements.open_table(path, (), ()),
    "csv": frames.csv,
    "parquet": frames.parquet,
    "weights": lambda path: weights_file.read(path, "linear"),
}


@pytest.fixture(params=READERS)
def reader(request):
    return READERS[request.param]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_an_endless_file_is_too_large(reader, monkeypatch):
    monkeypatch.setattr(files, "TABLE", 1 << 20)
    with pytest.raises(InputError, match=r"/dev/zero: too large, at most \d+ MiB are read; give a"):
        reader(Path("/dev/zero"))


def test_a_folder_an_absent_file_and_one_without_permission(reader, tmp_path):
    with pytest.raises(InputError, match=r"cannot be read: Is a directory; give the path of a|such"):
        reader(tmp_path)
    with pytest.raises(InputError, match=r"no such (file|weights)"):
        reader(tmp_path / "none")
    with pytest.raises(InputError, match=r"cannot be read: File name too long|no such weights"):
        reader(tmp_path / ("x" * 300))
    locked = tmp_path / "locked"
    locked.write_text("")
    locked.chmod(0)
    if os.access(locked, os.R_OK):
        pytest.skip("runs as root")
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        reader(locked)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_that_nobody_writes_into_ends(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_WRITER", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no process writes into this pipe"):
        reader(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_is_read_to_its_end_however_slowly_it_is_written(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write():
        with pipe.open("w") as file:
            time.sleep(0.1)
            file.write("a" * 100_000)
            file.flush()
            time.sleep(0.1)
            file.write("b")

    writer = threading.Thread(target=write)
    writer.start()
    assert files.read_text(pipe) == "a" * 100_000 + "b"
    writer.join()


def test_a_name_with_a_zero_byte(reader):
    with pytest.raises(InputError, match=r"embedded null|no such weights"):
        reader(Path("a\0b"))


@pytest.mark.parametrize("raw", [b"\xff\xfea\x00", b"a\n\x80", b"\x89PNG"])
def test_what_is_no_utf8_has_its_place(raw, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(raw)
    with pytest.raises(
        InputError, match=r"file:\d+:\d+: not a text file \(byte \d+ is not UTF-8\); give a config.json"
    ):
        hugging_face.read(path)
    with pytest.raises(InputError, match=r"file:\d+:\d+: not a text file"):
        measured(path, "all_reduce", 8)
    with pytest.raises(DataError, match="cannot be read as CSV"):
        own_measurements.open_table(path, (), ())


BOM = b"\xef\xbb\xbf"


def test_a_byte_order_mark_changes_nothing(tmp_path):
    """YAML: test_yaml.py."""
    texts = {
        "config.json": '{"model_type": "gpt2", "n_embd": 8}',
        "log.csv": "size_bytes,time_us\n8,16\n",
        "own.csv": "a,b\n1,2\n",
        "node.xml": '<system><pci device="0x2330"><gpu dev="0" sm="90"/></pci></system>',
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(BOM + text.encode())
    assert hugging_face.read(tmp_path / "config.json").keys == {"model_type": "gpt2", "n_embd": 8}
    assert measured(tmp_path / "log.csv", "all_reduce", 8) == {8: 16e-6}
    assert own_measurements.open_table(tmp_path / "own.csv", ("a",), ("a", "b")).cells == {"a": ["1"], "b": ["2"]}
    assert frames.csv(tmp_path / "own.csv").columns == ["a", "b"]
    assert load(tmp_path / "node.xml").gpus == 1


def test_a_number_of_5000_digits_in_a_config_json(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt2", "n_embd": ' + "9" * 5000 + "}")
    with pytest.raises(InputError, match=r"config.json:1:34: 9+… has more than 40 digits"):
        hugging_face.read(path).count("n_embd")
