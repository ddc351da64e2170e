"""What travels is raw named numbers; anything of another form is refused before it is read."""

from dataclasses import replace

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedprompt.evaluation.tally import Tally
from fedprompt.federation.flower import wire
from fedprompt.federation.flower.wire import Order, WireError
from fedprompt.methods.base import Update

TENSORS = {
    "prompt": torch.randn(2, 3, 4),
    "counts": torch.arange(5),
    "scalar": torch.tensor(1.5),
    "none": torch.zeros(0, 3),
    "turned": torch.randn(3, 4).T,
}


def test_tensors_come_back_as_they_were():
    back = wire.unpack(RecordDict({"payload": wire.pack(TENSORS)}), "payload")
    assert back.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)


def test_a_tensor_is_as_many_bytes_as_it_has_numbers():
    record = wire.pack(TENSORS)
    assert {name: len(array.data) for name, array in record.items()} == {
        name: value.nbytes for name, value in TENSORS.items()
    }


def with_array(array):
    return RecordDict({"update": ArrayRecord({"prompt": array})})


@pytest.mark.parametrize(
    "array",
    [
        Array("float32", (2,), wire.RAW, b"1234"),  # too few bytes
        Array("float32", (-1, -1), wire.RAW, b"1234"),
        Array("object", (1,), wire.RAW, b"12345678"),  # numpy's word for a pickle
        Array("float32", (1,), "numpy.ndarray", b"1234"),  # another serialisation
        Array("float32", (1,), "pickle", b"cos\nsystem\n(S'true'\ntR."),
    ],
)
def test_an_array_of_another_form_is_refused(array):
    with pytest.raises(WireError, match="prompt"):
        wire.unpack(with_array(array), "update")


def test_a_message_without_tensors_or_counts_is_refused():
    update = wire.update_content(Update(3, {"a": torch.ones(2)}, 7, {"loss": 0.5}))
    assert wire.read_update(update, 3).metrics == {"loss": 0.5}
    for missing in ("update", "counts", "figures"):
        parts = {key: value for key, value in update.items() if key != missing}
        with pytest.raises(WireError):
            wire.read_update(RecordDict(parts), 3)
    broken = {**update, "counts": MetricRecord({"examples": 7.5})}
    with pytest.raises(WireError, match="whole number"):
        wire.read_update(RecordDict(broken), 3)


def test_an_update_belongs_to_whom_the_key_says_whatever_the_message_claims():
    sent = wire.update_content(Update(3, {"a": torch.ones(2)}, 7))
    assert wire.read_update(sent, 5).client == 5


def test_sums_come_back_and_impossible_ones_are_seen():
    tally = Tally(10, 7, 3.25, 4.5, 50, tuple(0.5 for _ in range(15)))
    assert wire.read_tally(wire.tally_content(tally)) == tally
    assert tally.wrong() is None
    for bad in (
        replace(tally, right=11),
        replace(tally, images=-1, right=0),
        replace(tally, log_loss=float("nan")),
        replace(tally, log_loss=-1.0),
        replace(tally, squares=float("nan")),
        replace(tally, squares=21.0),
        replace(tally, drawn=9),
        replace(tally, gaps=(99.0,) * 15),
        replace(tally, gaps=(0.0,) * 3),
    ):
        assert bad.wrong() is not None, bad


def test_an_order_comes_back_as_it_was():
    order = Order("a" * 32, "{}", ("cat", "dog"), 3, 1, 7, 2, 1, "f" * 64)
    assert Order.from_content(RecordDict({"order": order.to_record()})) == order


def test_a_reason_is_cut_to_a_sentence():
    content = wire.failure_content("x" * 10_000)
    assert len(wire.read_failure(content) or "") == 200
    assert wire.read_failure(RecordDict({"other": ConfigRecord()})) is None
