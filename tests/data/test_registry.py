"""One door to all data sets."""

import pytest
from pydantic import ValidationError

from fedprompt.data.registry import OPENERS, open_dataset
from fedprompt.data.settings import DataSettings
from fedprompt.errors import UserError


@pytest.mark.parametrize(("wrong", "right"), [("cifar10", "cifar100"), ("PACS", "pacs"), ("digit6", "digits6")])
def test_a_misspelt_name_gets_the_nearest_one(wrong, right):
    with pytest.raises(UserError, match=f"did you mean '{right}'"):
        open_dataset(DataSettings(name=wrong))


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(UserError, match=", ".join(OPENERS)):
        open_dataset(DataSettings(name="xyzzy"))


@pytest.mark.parametrize(
    "wrong",
    [{"train_per_domain": 0}, {"validation": 1.0}, {"test_fraction": 0}, {"unreadable": "ignore"}, {"sead": 1}],
)
def test_settings_out_of_range_are_refused_at_the_door(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        DataSettings(**wrong)
