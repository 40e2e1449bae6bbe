"""All metrics that nodes serve, by full name."""

from __future__ import annotations

from itertools import chain

from shadowsync.watch.exporters.metric_names import BY_LABEL, BY_ROLE

EVERY_METRIC = {
    metric.full_name: metric for metric in chain.from_iterable([*BY_ROLE.values(), *BY_LABEL.values()])
}
