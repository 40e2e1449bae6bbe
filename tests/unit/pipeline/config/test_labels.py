"""Several labels in a job file: what they may be, and what does not go with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import load_job

CSV = '[data]\nformat = "csv"\npath = "log.csv"\n'
X = '[data.columns]\nclicked = "label"\nx = "categorical"\n'
WITHOUT = '[data.columns]\nx = "categorical"\n'
BOUGHT = 'bought = { kind = "label", threshold = 2 }\n'
MMOE = '[model]\nname = "mmoe"\n'


def job(write_job: Callable[[str], Path], text: str) -> Job:
    return load_job(write_job(text))


def test_the_first_is_the_headline(write_job: Callable[[str], Path]) -> None:
    bought = 'bought = { kind = "label", threshold = 2, loss_weight = 0.25 }\n'
    two = job(write_job, CSV + X + bought + MMOE)
    assert two.data.label_names == ("clicked", "bought")
    assert two.data.loss_weights == (1.0, 0.25)
    assert Job.model_validate_json(two.model_dump_json()) == two
    assert job(write_job, CSV + X).data.label_names == ("clicked",)
    criteo = job(write_job, '[data]\nformat = "criteo_tsv"\npath = "x"\n').data
    assert (criteo.label_names, criteo.loss_weights) == (("label",), (1.0,))


def test_one_column_may_be_two_labels_by_different_rules(write_job: Callable[[str], Path]) -> None:
    both = "".join(f'over_{at} = {{ kind = "label", source = "stars", threshold = {at} }}\n' for at in (3, 4))
    found = job(write_job, CSV + WITHOUT + both + MMOE)
    assert found.data.label_names == ("over_3", "over_4")


SAME = 'again = { kind = "label", source = "clicked", loss_weight = 0.5 }\n'
MANY = "".join(f'y{at} = "label"\n' for at in range(8))
ZEROS = "".join(f'{name} = {{ kind = "label", loss_weight = 0 }}\n' for name in "ab")
HAS = "data.columns has 2 labels (clicked, bought)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (X + SAME + MMOE, "data.columns: the labels clicked and again are the same column by the same rule"),
        (X + 'clicked = "label"\n', "Cannot overwrite a value"),
        (X + MANY + MMOE, "data.columns: 9 columns are labels; give 1 to 8 of kind"),
        (
            WITHOUT + 'y = { kind = "label", loss_weight = 2 }\n',
            "data.columns.y.loss_weight: given; it is for several labels, this is the only one",
        ),
        (X + 'z = { kind = "label", loss_weight = -1 }\n' + MMOE, "data.columns.z.loss_weight: -1 given; "),
        (WITHOUT + ZEROS + MMOE, "data.columns: the loss_weight of every label is 0; give one label more"),
        (
            X + 'age = { kind = "dense", loss_weight = 2 }\n',
            'data.columns.age.loss_weight: given; it is for kind "label", this is "dense"',
        ),
        *(
            (
                X + BOUGHT + f'[model]\nname = "{name}"\n',
                f"model.name: '{name}' has one logit, and {HAS}: give \"shared_bottom\"",
            )
            for name in ("autoint", "dcn_v2", "deepfm", "din", "dlrm", "finalmlp", "wide_deep")
        ),
        (X + BOUGHT + MMOE + "output_bias = -2\n", f"model.output_bias: -2 given, and {HAS}"),
        (
            CSV.removeprefix("[data]\n") + "negative_share = 0.5\n" + X + BOUGHT + MMOE,
            f"data.negative_share: 0.5 given, and {HAS}",
        ),
    ],
)
def test_what_is_refused(refusal: Callable[..., str], text: str, said: str) -> None:
    assert said in refusal(("[data]\n" if text.startswith("format") else CSV) + text)
