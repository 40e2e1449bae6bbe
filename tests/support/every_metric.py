"""All metrics that nodes serve, by full name."""

from __future__ import annotations

from shadowsync.watch.metric_names import BY_LABEL, BY_ROLE, LINK_RECEIVED, LINK_SENT, LINK_SHARED

EVERY_METRIC = {metric.full_name: metric for metrics in BY_ROLE.values() for metric in metrics} | {
    metric.full_name: metric for metric in (*BY_LABEL, LINK_SENT, LINK_RECEIVED, LINK_SHARED)
}
