"""The one door to all data sets: settings in, a data set out. A new data set is one file and one line here."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedprompt.data.cifar100 import open_cifar100
from fedprompt.data.dataset import Dataset, Split
from fedprompt.data.digits6 import open_digits6
from fedprompt.data.domainnet10 import open_domainnet10
from fedprompt.data.folder import open_domains, open_folder, open_pacs
from fedprompt.data.settings import DataSettings
from fedprompt.data.stratify import stratified_choice
from fedprompt.errors import UserError
from fedprompt.randomness import numpy_generator

OPENERS: dict[str, Callable[[DataSettings], Dataset]] = {
    "digits6": open_digits6,
    "cifar100": open_cifar100,
    "domainnet10": open_domainnet10,
    "pacs": open_pacs,
    "folder": open_folder,
    "domains": open_domains,
}


def open_dataset(settings: DataSettings) -> Dataset:
    """Open the data set that the settings name, cut down to the size they ask for.

    >>> dataset = open_dataset(DataSettings(name="digits6", train_per_domain=30))
    >>> len(dataset.train), dataset.domains
    (180, ('ink', 'chalk', 'blueprint', 'outline', 'photo', 'noise'))
    """
    if settings.name not in OPENERS:
        near = difflib.get_close_matches(settings.name.lower(), OPENERS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(OPENERS)}."
        raise UserError(f"There is no data set named {settings.name!r}; {hint}")
    dataset = OPENERS[settings.name](settings)
    return replace(
        dataset,
        train=_subsample(dataset.train, settings.train_per_domain, settings, "train"),
        test=_subsample(dataset.test, settings.test_per_domain, settings, "test"),
    )


def _subsample(split: Split, per_domain: int | None, settings: DataSettings, which: str) -> Split:
    """At most ``per_domain`` images of each domain, drawn without replacement from the data seed."""
    if per_domain is None or np.bincount(split.domains).max(initial=0) <= per_domain:
        return split  # whole, and not copied
    kept = []
    for domain in np.unique(split.domains):
        members = np.flatnonzero(split.domains == domain)
        generator = numpy_generator(settings.seed, "subsample", which, int(domain))
        groups = split.labels[members] if settings.subsample == "stratified" else np.zeros(len(members))
        kept.append(members[stratified_choice(groups, min(per_domain, len(members)), generator)])
    return split.take(np.sort(np.concatenate(kept)))
