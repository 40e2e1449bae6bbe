"""Checks of a class's declared attributes and options."""

from __future__ import annotations

import json
from typing import get_args

from ..sync_algos.base import Algorithm, ModelOrigin
from ..sync_algos.contract.options import AlgorithmError, make_options, option_types
from .error import ConformanceError
from .harness import Subject

DECLARATION = "declaration"
OPTIONS = "options"


def check_declaration(subject: Subject) -> None:
    """Check that the class attributes fit each other and the methods."""
    cls = subject.cls
    names = cls.state_names
    requirements = [
        (
            cls.model is not ModelOrigin.CENTER or cls.needs_center,
            "needs_center = True, since its model is the center",
        ),
        (
            not cls.needs_center or cls.merges or _has(cls, "center_rule"),
            "a center_rule, since it needs a center",
        ),
        (
            not cls.merges or (_has(cls, "merge_rule") and _has(cls, "merge_terms")),
            "the methods merge_rule and merge_terms, since it merges",
        ),
        (
            not cls.merges or (cls.needs_center and cls.counts_once),
            "needs_center = True and counts_once = True, since it merges",
        ),
        (
            isinstance(names, tuple) and len(set(names)) == len(names) and all(map(_is_text, names)),
            "state_names as a tuple of different names",
        ),
        (
            not names or (_has(cls, "state") and _has(cls, "load_state")),
            "the methods state and load_state, since it has state_names",
        ),
        (
            cls.model is not ModelOrigin.GLOBAL or (_has(cls, "global_model") and bool(names)),
            "a global_model and state_names (a joining trainer gets the state), since its model is global",
        ),
    ]
    for is_met, expected in requirements:
        if not is_met:
            raise ConformanceError(DECLARATION, "reading the class", expected, "it has not")
    try:
        json.dumps(dict(subject.make().describe()))
    except (TypeError, ValueError) as error:
        raise ConformanceError(
            DECLARATION, "describe()", "options in effect that can be written as JSON", str(error)
        ) from error


def check_options(subject: Subject) -> None:
    """Check that NaN is refused by the option's name before anything starts."""
    cls = subject.cls
    for key, kind in option_types(cls.Options).items():
        if kind is not float and float not in get_args(kind):
            continue
        step = f"{key} = nan"
        try:
            make_options(cls.name, cls.Options, {**subject.options, key: float("nan")})
        except AlgorithmError as error:
            if error.key != f"sync.options.{key}":
                expected = f'ValueError("{key}: ...") in __post_init__'
                raise ConformanceError(OPTIONS, step, expected, str(error)) from error
        else:
            expected = f'ValueError("{key}: ...") in __post_init__'
            raise ConformanceError(OPTIONS, step, expected, "no error")


def _has(cls: type[Algorithm], method: str) -> bool:
    return getattr(cls, method) is not getattr(Algorithm, method)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
