"""All metrics that nodes serve, by the name that Prometheus shows."""

from __future__ import annotations

from itertools import chain

from shadowsync.watch.exporters.metric_names import BY_LABEL, BY_ROLE, PREFIX, Metric


def full_name(metric: Metric) -> str:
    """Its name, as prometheus_client makes it."""
    return f"{PREFIX}{metric.name}{'_total' if metric.kind == 'counter' else ''}"


EVERY_METRIC = {
    full_name(metric): metric for metric in chain.from_iterable([*BY_ROLE.values(), *BY_LABEL.values()])
}
