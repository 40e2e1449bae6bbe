"""What the name of a column says of its values."""

from __future__ import annotations

import re
from typing import Final

from .entry import plain_name


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")
_ID_WORDS: Final = _set(
    """
    id ids uid gid pid sid uuid guid code codes cod codigo codice kod key hash token zip zipcode postcode plz
    cep postal sku skus isbn asin ean upc gtin imei imsi msisdn mac ip cookie session device phone telephone
    tel telefon telefono mobile fingerprint barcode nr iban account fips icd naics
    """
)
_THINGS: Final = _set(
    """
    user item product movie song ad advertiser campaign banner creative site app category brand store city
    customer client member visitor merchant seller shop article artikel kunde film track artist author book
    query doc document url publisher placement region country station route airport hotel driver
    """
)
_ID_ENDINGS: Final = ("nummer", "kennung", "schluessel", "schlüssel", "编号", "代码")
# Words that end like "visitorid" and are no ids.
_NO_IDS: Final = _set(
    """
    bid paid unpaid prepaid postpaid grid valid invalid covid humid acid solid liquid mid aid kid lid fluid
    rapid android hybrid void avoid avid rigid vivid arid amid raid maid hid did slid skid squid orchid
    pyramid asteroid thyroid steroid typhoid said laid plaid madrid lipid timid centroid overlaid
    """
)
_COUNT_FIRST: Final = _set("n num nb nr no number count cnt total sum avg mean max min median std")
_QUANTITIES: Final = _set(
    """
    age price amount amt cost fare fee score weight height width length len depth size qty quantity duration
    seconds minutes hours days weeks months years time distance speed rate ratio percent pct balance income
    salary revenue profit sales volume temp temperature humidity pressure views clicks visits pages position
    rank rating stars year lat lon latitude longitude elevation area rooms beds baths alter preis anzahl menge
    precio edad cantidad prix montant limit budget tax discount mileage power capacity population
    """
)
_OUTCOMES: Final = _set(
    """
    label target click clicks clicked clk convert converted conversion conversions buy bought purchase
    purchased ordered like liked likes dislike disliked share shared follow followed favorite favourite
    comment commented install installed churn churned default defaulted outcome response responded survived
    died fatal returned refunded cancelled canceled cart forward forwarded dismissed subscribed attributed
    approved fraud chargeback comprado convertido
    """
)


def words_of(name: str) -> list[str]:
    """Return the words of a column's name in lower case.

    They are user and id for "User_ID" and for "userId".
    """
    return [word.lower() for word in _WORDS.findall(plain_name(name))]


def names_ids(name: str) -> bool:
    """Return whether the name says that the values are ids, in any case."""
    words = words_of(name)
    if not words or (words[0] in _COUNT_FIRST and len(words) > 1):
        return False
    if len(words) == 1 and words[0].removesuffix("s") in _THINGS:
        return True
    return any(map(_is_id, (words[0], words[-1])))


def _is_id(word: str) -> bool:
    if word in _ID_WORDS or word.endswith(_ID_ENDINGS):
        return True
    if len(word) > 3 and word.endswith(("id", "ids")):
        return word.removesuffix("s") not in _NO_IDS
    return len(word) > 4 and word.endswith(("code", "uuid", "hash", "sku"))


def names_quantity(name: str) -> bool:
    """Return whether the name says that the values count or measure something."""
    words = words_of(name)
    ends = _QUANTITIES | _COUNT_FIRST
    return bool(words) and (words[0] in _COUNT_FIRST or words[-1] in ends)


def names_outcome(name: str) -> bool:
    """Return whether the name is that of a result, as a label is."""
    return any(word in _OUTCOMES for word in words_of(name))
